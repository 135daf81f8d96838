"""How bytes come and go: by a socket that says when they arrived, or by the event loop's transport."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress
from typing import Protocol, cast

from paceline.bench.serve.arrival import ANCILLARY_BYTES, HAS_STAMPS, Arrivals, ask_for_stamps, stamp_in
from paceline.bench.serve.http_exchange import Exchange

_READ_BYTES = 1 << 16


class Connection(Protocol):
    exchange: Exchange
    is_open: bool

    async def write(self, data: bytes) -> None:
        """Never raises for a connection that is lost: the exchange hears of that, after what had come before it."""

    def close(self) -> None: ...


async def connect(host: str, port: int, context: ssl.SSLContext | None, arrivals: Arrivals) -> Connection:
    """Raises OSError. Stamps of the kernel where it gives them: a plain connection on Linux."""
    loop = asyncio.get_running_loop()
    if context is None and HAS_STAMPS:
        return StampedConnection(await _connected(host, port), arrivals)
    _, connection = await loop.create_connection(lambda: TransportConnection(arrivals), host, port, ssl=context)
    return connection


async def _connected(host: str, port: int) -> socket.socket:
    """To the first address of the host that takes it, in the system's order."""
    loop = asyncio.get_running_loop()
    errors: list[OSError] = []
    for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with suppress(OSError):  # then no data has a stamp, which Arrivals counts
                ask_for_stamps(sock)  # first, since the kernel takes a moment to begin
            await loop.sock_connect(sock, address)
            return sock
        except OSError as error:
            sock.close()
            errors.append(error)
        except BaseException:
            sock.close()
            raise
    raise errors[0] if len(errors) == 1 else OSError("; ".join(dict.fromkeys(map(str, errors))) or "no address")


class StampedConnection:
    """A socket of our own: transports do not pass on what comes beside the data."""

    def __init__(self, sock: socket.socket, arrivals: Arrivals) -> None:
        self.exchange = Exchange()
        self.is_open = True
        self._socket = sock
        self._arrivals = arrivals
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock, self._read)

    async def write(self, data: bytes) -> None:
        with suppress(OSError):
            await self._loop.sock_sendall(self._socket, data)

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self._loop.remove_reader(self._socket)
            self._socket.close()

    def _read(self) -> None:
        try:
            data, ancillary, _, _ = self._socket.recvmsg(_READ_BYTES, ANCILLARY_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            return self._lost(error)
        if not data:
            return self._lost(None)
        if not self.exchange.feed(self._arrivals.of(stamp_in(ancillary)), data):
            self.close()

    def _lost(self, error: OSError | None) -> None:
        self.close()
        self.exchange.lost(error)


class TransportConnection(asyncio.Protocol):
    """TLS, and systems without stamps: data has the time at which the event loop came to it."""

    def __init__(self, arrivals: Arrivals) -> None:
        self.exchange = Exchange()
        self.is_open = False
        self._arrivals = arrivals
        self._transport: asyncio.WriteTransport | None = None

    async def write(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)

    def close(self) -> None:
        self.is_open = False
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's is one by its methods alone
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        if not self.exchange.feed(self._arrivals.of(None), data):
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self.exchange.lost(exc)
