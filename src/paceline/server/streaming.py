"""Answers that a client may walk away from: server-sent events, and plain answers.

Contract
- Work stops as soon as the client hangs up, which aborts its requests in the engine (p43).
- A stream's status line is sent with its first event, so that a refused request gets its 400 and not a stream.
- A fault after that is one event with OpenAI's error body, then [DONE]; an endpoint may have a form of its own.
- When the server stops, work in progress meets ShuttingDownError, which is such a fault.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec
from fastapi import Request, Response
from starlette.types import Receive, Scope, Send

from paceline.errors import PacelineError
from paceline.server.errors import ClientGoneError, RequestFailedError, ShuttingDownError, error_body
from paceline.server.requests import Requests

logger = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"
Events = AsyncGenerator[bytes, None]
Fault = Callable[[Exception], bytes]  # the last events of a stream that an error ended
T = TypeVar("T")


def event(body: Any) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def fault_event(error: Exception) -> bytes:
    return event(error_body(error)[1]) + DONE


async def while_connected(receive: Receive, requests: Requests, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; with the work cancelled, ClientGoneError if the client hangs up first, or
    ShuttingDownError if the server stops first."""
    working, listening = asyncio.ensure_future(work), asyncio.ensure_future(_disconnect(receive))
    ending = asyncio.ensure_future(requests.wait_ending())
    try:
        await asyncio.wait((working, listening, ending), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGoneError if listening.done() else ShuttingDownError
    finally:
        for task in (working, listening, ending):
            task.cancel()
        await asyncio.gather(working, listening, ending, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def open_stream(request: Request, requests: Requests, events: Events, fault: Fault = fault_event) -> Response:
    """Wait for the first event; what goes wrong before it is an ordinary error response."""
    try:
        first = await while_connected(request.receive, requests, _first(events))
    except BaseException:
        await events.aclose()
        raise
    return EventStream(first, events, requests, fault)


async def _first(events: Events) -> bytes:
    return await anext(events)


class EventStream(Response):
    media_type = "text/event-stream"

    def __init__(self, first: bytes, rest: Events, requests: Requests, fault: Fault) -> None:
        self.status_code = 200
        self.background = None
        self._first = first
        self._rest = rest
        self._requests = requests
        self._fault = fault
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._rest):
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": self._first, "more_body": True})
            try:
                await while_connected(receive, self._requests, self._send_rest(send))
            except ClientGoneError:
                return
            except ShuttingDownError as error:
                await self._send_fault(send, error)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_rest(self, send: Send) -> None:
        try:
            async for chunk in self._rest:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except Exception as error:
            if not isinstance(error, PacelineError | RequestFailedError):
                logger.exception("A stream failed.")
            await self._send_fault(send, error)

    async def _send_fault(self, send: Send, error: Exception) -> None:
        await send({"type": "http.response.body", "body": self._fault(error), "more_body": True})
