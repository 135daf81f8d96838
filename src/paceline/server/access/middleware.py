"""AccessMiddleware: the key of a request, and the limits of whoever holds it, before anything else is read.

Health can be asked without a key, so that probes need none, and the page's files hold nothing secret (the page asks for
a key itself); everything else needs one where keys are set up.
Requests that make work (POST) count against the limits; they carry their `Ticket` in the scope, and what it holds is
given back when the response is over, however it ends.
"""

from __future__ import annotations

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from paceline.errors import PacelineError
from paceline.server.access.keys import ApiKeys
from paceline.server.access.limits import Limits, Ticket
from paceline.server.access.options import AccessOptions
from paceline.server.errors import WrongKeyError, error_response

TICKET = "paceline.ticket"
CLIENT = "paceline.client"  # the name of a key, or an address
_OPEN_PATHS = ("/", "/health", "/health/live", "/health/ready")
_OPEN_FOLDER = "/static/"


class Guard:
    """All that stands before an application."""

    def __init__(self, app: ASGIApp, access: AccessOptions, limits: Limits) -> None:
        self._app: ASGIApp = AccessMiddleware(app, access.api_keys, limits)
        if access.allowed_origins:  # outside of the keys: a browser asks first, without one
            self._app = CORSMiddleware(
                self._app,
                allow_origins=access.allowed_origins,
                allow_methods=("GET", "POST"),
                allow_headers=("*",),
                expose_headers=("X-Request-Id", "Retry-After"),
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


class AccessMiddleware:
    def __init__(self, app: ASGIApp, keys: ApiKeys | None, limits: Limits) -> None:
        self._app = app
        self._keys = keys
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        ticket = None
        try:
            scope[CLIENT] = self._client(scope)
            if scope["method"] == "POST":
                ticket = scope[TICKET] = self._limits.enter(scope[CLIENT])
        except PacelineError as error:
            response = error_response(error, {"connection": "close"})  # its body is left unread
            await response(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            if ticket is not None:
                ticket.release()

    def _client(self, scope: Scope) -> str:
        if self._keys is None or _is_open(scope["path"]):
            return str(scope["client"][0]) if scope.get("client") else "unknown"
        key = _bearer(scope)
        name = self._keys.name_of(key) if key is not None else None
        if name is None:
            raise WrongKeyError(is_missing=key is None)
        return f"key {name}"


def _is_open(path: str) -> bool:
    return path in _OPEN_PATHS or path.startswith(_OPEN_FOLDER)


def _bearer(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == b"authorization":
            kind, _, key = value.decode("latin-1").partition(" ")
            return key.strip() if kind.lower() == "bearer" and key.strip() else None
    return None


def ticket_of(scope: Scope) -> Ticket:
    ticket: Ticket = scope[TICKET]
    return ticket
