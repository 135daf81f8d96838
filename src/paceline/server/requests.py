"""The HTTP requests in progress: counted, bounded in size, and ended together when the server stops.

Contract
- A body is read whole before its endpoint runs. One of more bytes than are taken is answered with 413, and never
  held in memory, and one of more entries never parsed; one that does not arrive in time with 408.
- After `end_all` every request, running or new, meets ShuttingDownError where it waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.server.errors import BodyTimeoutError, BodyTooLargeError, error_response
from paceline.server.json_size import MAX_ENTRIES, check_json_size

_DISCARDED_FACTOR = 8  # of what is taken: read and thrown away, because most clients send all before they listen


class Requests:
    def __init__(self) -> None:
        self.num_running = 0  # those that ask for an answer; probes do not count
        self._ending = False
        self._waiting: set[asyncio.Future[None]] = set()

    def end_all(self) -> None:
        self._ending = True
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    async def wait_ending(self) -> None:
        """Return when `end_all` has been called."""
        if self._ending:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await future
        finally:
            self._waiting.discard(future)


class RequestsMiddleware:
    def __init__(
        self,
        app: ASGIApp,
        requests: Requests,
        headers: Mapping[str, str] | None = None,
        max_body_bytes: int = 32 * 2**20,
        body_timeout: float = 60.0,
        max_entries: int = MAX_ENTRIES,
    ) -> None:
        """`headers` are added to every response; `body_timeout` is in seconds; `max_entries`: of a body's JSON."""
        self._app = app
        self._requests = requests
        self._max_body_bytes = max_body_bytes
        self._body_timeout = body_timeout
        self._max_entries = max_entries
        self._headers = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._serve(scope, receive, self._with_headers(send) if self._headers else send)

    def _with_headers(self, send: Send) -> Send:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", []), *self._headers]}
            await send(message)

        return send_with_headers

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        self._requests.num_running += 1
        try:
            body = await self._body(receive)
            if body is not None:
                check_json_size(body, self._max_entries)
                await self._app(scope, _replay(body, receive), send)
        except (BodyTooLargeError, BodyTimeoutError) as error:
            await error_response(error, {"connection": "close"})(scope, receive, send)
        finally:
            self._requests.num_running -= 1

    async def _body(self, receive: Receive) -> bytes | None:
        try:
            async with asyncio.timeout(self._body_timeout):
                return await _read_body(receive, self._max_body_bytes)
        except TimeoutError:
            raise BodyTimeoutError(f"The body did not arrive within {self._body_timeout:g} s.") from None


async def _read_body(receive: Receive, most: int) -> bytes | None:
    """The whole body; None if the client hung up before it was there."""
    chunks: list[bytes] = []
    size, more = 0, True
    while more and size <= _DISCARDED_FACTOR * most:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunk, more = message.get("body", b""), message.get("more_body", False)
        size += len(chunk)
        if size <= most:
            chunks.append(chunk)
        else:
            chunks.clear()
    if size > most:
        limit = f"{most // 2**20} MiB" if most % 2**20 == 0 else f"{most} bytes"
        raise BodyTooLargeError(f"The body has more than {limit}, which is the most it may have.")
    return b"".join(chunks)


def _replay(body: bytes, receive: Receive) -> Receive:
    rest: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return rest.pop() if rest else await receive()

    return replay
