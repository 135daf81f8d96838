"""Outside of everything else: a record for every HTTP request, and an X-Request-Id on every response.

What error a response or a stream ended with is read off the wire, where every endpoint's errors have one form
(server/errors.py): none can be forgotten, and no endpoint has to know.
"""

from __future__ import annotations

import re
import uuid

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.server.errors import CLIENT_GONE
from paceline.server.telemetry.record import RequestRecord, current_record
from paceline.server.telemetry.telemetry import Telemetry

_FAULT = b'data: {"error":'  # how server/streaming.py begins a fault in the middle of a stream
_WELL_FORMED_ID = re.compile(r"[\w.:-]{1,128}")  # others are not repeated: they end up in logs
_GONE = "client_disconnected"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})  # strangers may send any word


class TelemetryMiddleware:
    def __init__(self, app: ASGIApp, telemetry: Telemetry) -> None:
        self._app = app
        self._telemetry = telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = _open_record(scope, self._telemetry.clock())
        watch = _Watch(record, send)
        token = current_record.set(record)
        self._telemetry.num_in_progress += 1
        try:
            await self._app(scope, receive, watch)
        finally:
            self._telemetry.num_in_progress -= 1
            current_record.reset(token)
            record.ended = self._telemetry.clock()
            record.route = getattr(scope.get("route"), "path", "")
            _close(record, watch)
            self._telemetry.finish(record)


class _Watch:
    """`send`, watched."""

    def __init__(self, record: RequestRecord, send: Send) -> None:
        self._record = record
        self._send = send
        self.is_complete = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._record.status = message["status"]
            header = (b"x-request-id", self._record.request_id.encode())
            message = {**message, "headers": [*message.get("headers", ()), header]}
        elif message["type"] == "http.response.body":
            body = message.get("body", b"")
            if self._record.status == CLIENT_GONE:
                self._record.error = _GONE
            elif self._record.status >= 400:
                self._record.error = self._record.error or _kind(body, self._record.status)
            elif body.startswith(_FAULT):
                self._record.error = _kind(body[len(b"data: ") :].split(b"\n", 1)[0], 500)
            self.is_complete = not message.get("more_body", False)
        await self._send(message)


def _open_record(scope: Scope, now: float) -> RequestRecord:
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    given = headers.get("x-request-id", "")
    return RequestRecord(
        request_id=given if _WELL_FORMED_ID.fullmatch(given) else uuid.uuid4().hex,
        method=scope["method"] if scope["method"] in _METHODS else "other",
        path=scope["path"],
        started=now,
        trace_headers={name: headers[name] for name in ("traceparent", "tracestate") if name in headers},
    )


def _close(record: RequestRecord, watch: _Watch) -> None:
    """A request whose response is not whole was left by its client: the server always ends its own."""
    if watch.is_complete and record.status != CLIENT_GONE:
        return
    record.is_aborted = record.is_generation
    record.error = record.error or _GONE
    record.status = record.status or CLIENT_GONE


def _kind(body: bytes, status: int) -> str:
    """The code of an error body, or its type; the status where there is no such body."""
    try:
        error = msgspec.json.decode(body)["error"]
        return str(error.get("code") or error["type"])
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        return f"http_{status}"
