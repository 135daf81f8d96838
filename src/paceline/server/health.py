"""Health endpoints, and what is answered before the model is there.

/health/live    200 while the process is worth keeping: it loads, or its engine lives and makes progress (p42)
/health/ready   200 when requests will be served now: the model is loaded and warm, and nobody asked us to stop
/health         as /health/ready

They follow the engine's progress, not the web server's. While the model loads, `Gate` answers every other path with
503 and Retry-After, so that a probe, or a client that came early, is told at once.
"""

from __future__ import annotations

from fastapi import APIRouter, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from paceline.errors import EngineDeadError, EngineStalledError
from paceline.server.errors import NotReadyError, ShuttingDownError, error_body, json_response
from paceline.server.paths import get
from paceline.server.telemetry.live import LiveStatus

RETRY_SECONDS = 5


def health_router(live: LiveStatus) -> APIRouter:
    router = APIRouter()

    @get(router, "/health/live")
    async def is_live() -> Response:
        """200 while the engine lives and makes progress, else 503: restart the server."""
        _check_engine(live)
        return json_response({"status": "ok"})

    @get(router, "/health", "/health/ready")
    async def is_ready() -> Response:
        """200 while requests are served, else 503."""
        _check_engine(live)
        if live.is_stopping:
            raise ShuttingDownError
        return json_response({"status": "ok"})

    return router


def _check_engine(live: LiveStatus) -> None:
    stalled = live.stalled_seconds
    if stalled is not None:
        raise EngineStalledError(stalled)
    if live.state == "unhealthy":
        raise EngineDeadError("it has ended.")


class Gate:
    """The application once there is one; before, that the model is loading."""

    def __init__(self) -> None:
        self._app: ASGIApp | None = None

    def open(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._app is not None:
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await _while_loading(scope["path"])(scope, receive, send)


def _while_loading(path: str) -> Response:
    if path == "/health/live":
        return json_response({"status": "loading"})
    status, body = error_body(NotReadyError())
    return json_response(body, status, {"retry-after": str(RETRY_SECONDS), "connection": "close"})
