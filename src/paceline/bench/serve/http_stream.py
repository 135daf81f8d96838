"""Streams over HTTP/1.1 with the time at which data arrived.

General clients say when they got to a chunk. With 256 streams at 10,000 chunks a second on one core that is
milliseconds after it came, and httpx does not keep up (benchmarks/bench_client.py). So the time is the kernel's where
it gives one (arrival.py), else it is taken before anything is parsed (llhttp through httptools, uvloop); what is not
timed goes through httpx. No proxies, no redirects: a benchmark talks to its server.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping

import httpx

from paceline.bench.serve.arrival import Arrivals
from paceline.bench.serve.connection import Connection, connect
from paceline.bench.serve.http_exchange import Answered, OnData, StreamError
from paceline.bench.serve.tls import tls_context
from paceline.errors import ConfigurationError

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def server_url(text: str) -> httpx.URL:
    """`http://host:8000`, with or without a slash or /v1 at its end, as the root that paths are put behind."""
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL:
        url = httpx.URL("")
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigurationError(f"'{text}' is not an address such as http://127.0.0.1:8000.")
    if url.userinfo:  # not repeated here: it is a secret
        raise ConfigurationError(
            f"The address of {url.host} holds a user or password, which would be stored with every result. Leave it "
            "out; --api-key-env names the environment variable of a key."
        )
    if url.query or url.fragment:
        raise ConfigurationError(f"'{text}' has more than an address: nothing may stand behind ? or #.")
    if url.port is not None and not 0 < url.port < 1 << 16:
        raise ConfigurationError(f"'{text}': ports go from 1 to 65535.")
    return url.copy_with(path=url.path.rstrip("/").removesuffix("/v1"), query=None, fragment=None)


def same_server(one: httpx.URL, other: httpx.URL) -> bool:
    """By address alone, this machine's names taken as one."""
    places = [
        (url.scheme, "localhost" if url.host in LOOPBACK else url.host, url.port, url.path) for url in (one, other)
    ]
    return places[0] == places[1]


class StreamClient:
    """A server, and the connections to it that are free. Not to be shared between event loops."""

    def __init__(
        self, url: httpx.URL, headers: Mapping[str, str], timeout: float, tls: ssl.SSLContext | None = None
    ) -> None:
        """`timeout`: seconds for a whole answer. `tls`: for https; None: the usual authorities (tls.py)."""
        self.arrivals = Arrivals()
        self._url = url
        self._timeout = timeout
        self._head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._ssl = (tls or tls_context()) if url.scheme == "https" else None
        self._port = url.port or (443 if self._ssl else 80)
        self._free: list[Connection] = []

    async def post(self, path: str, body: bytes, on_data: OnData) -> Answered:
        """Raises StreamError, and TimeoutError; whatever `on_data` raises comes through."""
        request = self._request(path, body)
        async with asyncio.timeout(self._timeout):
            while True:
                connection = self._take()
                is_fresh = connection is None
                connection = connection or await self._connect()
                exchange = connection.exchange
                try:
                    finished = exchange.begin(self.arrivals.now(), on_data)
                    await connection.write(request)
                    answered = await finished
                except StreamError:
                    if is_fresh or exchange.has_received:
                        raise
                    continue  # the server had closed it while it lay idle; nothing was lost
                except BaseException:
                    connection.close()
                    raise
                if exchange.is_reusable and connection.is_open:
                    self._free.append(connection)
                else:
                    connection.close()
                return answered

    def close(self) -> None:
        while self._free:
            self._free.pop().close()

    def _take(self) -> Connection | None:
        while self._free:
            connection = self._free.pop()
            if connection.is_open:
                return connection
        return None

    async def _connect(self) -> Connection:
        try:
            return await connect(self._url.host, self._port, self._ssl, self.arrivals)
        except OSError as error:
            raise StreamError(f"no connection to {self._url} ({error})") from None

    def _request(self, path: str, body: bytes) -> bytes:
        target = self._url.path.rstrip("/") + path
        host = self._url.netloc.decode("ascii")
        head = f"POST {target} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n{self._head}"
        return f"{head}accept: text/event-stream\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
