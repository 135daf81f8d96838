"""One request after another on one connection: bytes in with their times, an Answered out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import httptools

from paceline.errors import PacelineError

OnData = Callable[[int, bytes], None]  # time in ns of time.perf_counter_ns(), a part of the body
_LARGEST_ERROR = 4096


class StreamError(PacelineError):
    """The exchange broke: no connection, no HTTP, or an end before the end."""


@dataclass(frozen=True, slots=True)
class Answered:
    """`error_body` is empty where the status is 200: that body went to `on_data`."""

    status: int
    error_body: bytes


class Exchange:
    """Its parser calls back on_header, on_headers_complete, on_body and on_message_complete."""

    def __init__(self) -> None:
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

    def begin(self, now_ns: int, on_data: OnData) -> asyncio.Future[Answered]:
        """The request is sent from `now_ns` on: nothing of its answer came before."""
        self._parser = httptools.HttpResponseParser(self)
        self._finished = asyncio.get_running_loop().create_future()
        self._on_data, self._status, self._error = on_data, 0, b""
        self._received_ns = now_ns
        self.is_reusable = self.has_received = self._has_length = self._ends_by_close = False
        return self._finished

    def feed(self, received_ns: int, data: bytes) -> bool:
        """False: nothing more can come of this connection."""
        self._received_ns = max(received_ns, self._received_ns)  # a later part did not come earlier
        self.has_received = True
        if self._parser is None:
            return False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            cause = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else None
            self._fail(cause or StreamError(f"what came back is not HTTP/1.1: {error}"))
            return False
        return True

    def lost(self, error: Exception | None) -> None:
        """The connection has ended; `error`: not by its own end."""
        if error is None and self._ends_by_close and self._finished is not None and not self._finished.done():
            self._finished.set_result(Answered(self._status, self._error))
        cause = f" ({error})" if error else ""
        self._fail(StreamError(f"the connection was closed before the answer had ended{cause}"))

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
