"""Streams over HTTP/1.1 with the time of arrival taken where bytes leave the socket.

General clients stamp a chunk only after their parsers and task switches. At 10,000 chunks a second on one core that
is too late: measured, a chunk cost 340 µs in httpx, 110 µs in aiohttp and 20 to 30 µs here (llhttp through
httptools, uvloop), see benchmarks/bench_client.py. So the protocol below stamps first and parses after; everything
that is not timed goes through httpx. No proxies, no redirects: a benchmark talks to its server.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

import httptools
import httpx

from paceline.errors import ConfigurationError, PacelineError

OnData = Callable[[int, bytes], None]  # time in ns of time.perf_counter_ns(), a part of the body
_LARGEST_ERROR = 4096


class StreamError(PacelineError):
    """The exchange broke: no connection, no HTTP, or an end before the end."""


@dataclass(frozen=True, slots=True)
class Answered:
    """`error_body` is empty where the status is 200: that body went to `on_data`."""

    status: int
    error_body: bytes


def server_url(text: str) -> httpx.URL:
    """`http://host:8000`, with or without a slash or /v1 at its end, as the root that paths are put behind."""
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL:
        url = httpx.URL("")
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigurationError(f"'{text}' is not an address such as http://127.0.0.1:8000.")
    return url.copy_with(path=url.path.rstrip("/").removesuffix("/v1"), query=None, fragment=None)


class _Connection(asyncio.Protocol):
    """One exchange at a time; its parser calls back on_header, on_headers_complete, on_body and on_message_complete."""

    def __init__(self) -> None:
        self.transport: asyncio.WriteTransport | None = None
        self.is_open = False
        self.is_reusable = False
        self.has_received = False
        self._has_length = False
        self._ends_by_close = False  # a body without a length or chunks: its end is the connection's
        self._parser: httptools.HttpResponseParser | None = None
        self._finished: asyncio.Future[Answered] | None = None
        self._on_data: OnData | None = None
        self._status = 0
        self._error = b""
        self._received_ns = 0

    def send(self, request: bytes, on_data: OnData) -> asyncio.Future[Answered]:
        assert self.transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self._finished = asyncio.get_running_loop().create_future()
        self._on_data, self._status, self._error = on_data, 0, b""
        self.is_reusable = self.has_received = self._has_length = self._ends_by_close = False
        self.transport.write(request)
        return self._finished

    def close(self) -> None:
        self.is_open = False
        if self.transport is not None:
            self.transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.WriteTransport, transport)  # uvloop's is one by its methods alone
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        self._received_ns = time.perf_counter_ns()
        self.has_received = True
        if self._parser is None:
            return self.close()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            cause = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else None
            self._fail(cause or StreamError(f"what came back is not HTTP/1.1: {error}"))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if exc is None and self._ends_by_close and self._finished is not None and not self._finished.done():
            self._finished.set_result(Answered(self._status, self._error))
        self._fail(StreamError(f"the connection was closed before the answer had ended{f' ({exc})' if exc else ''}"))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._has_length |= name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        self._status = self._parser.get_status_code()
        self._ends_by_close = not self._has_length

    def on_body(self, data: bytes) -> None:
        if self._status != 200:
            self._error = (self._error + data)[:_LARGEST_ERROR]
        elif self._on_data is not None:
            self._on_data(self._received_ns, data)

    def on_message_complete(self) -> None:
        assert self._parser is not None
        self.is_reusable = self._parser.should_keep_alive()
        if self._finished is not None and not self._finished.done():
            self._finished.set_result(Answered(self._status, self._error))

    def _fail(self, error: BaseException) -> None:
        if self._finished is not None and not self._finished.done():
            self._finished.set_exception(error)


class StreamClient:
    """A server, and the connections to it that are free. Not to be shared between event loops."""

    def __init__(self, url: httpx.URL, headers: Mapping[str, str], timeout: float) -> None:
        """`timeout`: seconds for a whole answer."""
        self._url = url
        self._timeout = timeout
        self._head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._ssl = ssl.create_default_context() if url.scheme == "https" else None
        self._port = url.port or (443 if self._ssl else 80)
        self._free: list[_Connection] = []

    async def post(self, path: str, body: bytes, on_data: OnData) -> Answered:
        """Raises StreamError, and TimeoutError; whatever `on_data` raises comes through."""
        request = self._request(path, body)
        async with asyncio.timeout(self._timeout):
            while True:
                connection = self._take()
                is_fresh = connection is None
                connection = connection or await self._connect()
                try:
                    answered = await connection.send(request, on_data)
                except StreamError:
                    if is_fresh or connection.has_received:
                        raise
                    continue  # the server had closed it while it lay idle; nothing was lost
                except BaseException:
                    connection.close()
                    raise
                if connection.is_reusable and connection.is_open:
                    self._free.append(connection)
                else:
                    connection.close()
                return answered

    def close(self) -> None:
        while self._free:
            self._free.pop().close()

    def _take(self) -> _Connection | None:
        while self._free:
            connection = self._free.pop()
            if connection.is_open:
                return connection
        return None

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(_Connection, self._url.host, self._port, ssl=self._ssl)
        except OSError as error:
            raise StreamError(f"no connection to {self._url} ({error})") from None
        return connection

    def _request(self, path: str, body: bytes) -> bytes:
        target = self._url.path.rstrip("/") + path
        host = self._url.netloc.decode("ascii")
        head = f"POST {target} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n{self._head}"
        return f"{head}accept: text/event-stream\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
