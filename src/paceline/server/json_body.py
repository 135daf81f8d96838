"""JsonRoute: bodies are JSON in UTF-8 that says each thing once, or are refused with what is wrong with them."""

from __future__ import annotations

import email.message
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from paceline.errors import InvalidRequestError
from paceline.json_text import loads

_PLAIN = ("", "identity")
_CHARSETS = ("utf-8", "utf8", "us-ascii")


class JsonRequest(Request):
    async def json(self) -> Any:
        body = await self.body()
        try:
            return loads(body.decode("utf-8-sig"))
        except UnicodeDecodeError as error:
            message = f"The body is not UTF-8: byte {error.start} begins no character. Send JSON in UTF-8."
            raise InvalidRequestError(message, code="invalid_json") from None


class JsonRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def checked(request: Request) -> Response:
            if request.method == "POST":
                _check_headers(request)
            return await handle(JsonRequest(request.scope, request.receive))

        return checked


def _check_headers(request: Request) -> None:
    coding = ", ".join(request.headers.getlist("content-encoding")).strip().lower()
    if coding not in _PLAIN:
        raise InvalidRequestError(
            f"'Content-Encoding: {coding:.40}' is not supported: send the body uncompressed, without this header.",
            code="unsupported_encoding",
        )
    kind = email.message.Message()
    kind["content-type"] = request.headers.get("content-type", "")
    charset = (kind.get_content_charset() or "utf-8").strip().lower()
    if charset not in _CHARSETS:
        raise InvalidRequestError(
            f"charset={charset:.40} is not supported: send the body in UTF-8.", code="unsupported_encoding"
        )
