"""Every error as OpenAI's body with the right status: {"error": {"message", "type", "param", "code"}}.

400 the request is wrong · 401 no key, or a wrong one · 404 no such model or path · 405 no such method here
408 the body did not arrive · 413 too large a body · 429 too much at once, with Retry-After · 504 out of time
500 a fault of ours, or of this request inside the engine · 503 no engine: gone, stuck, still loading, or stopping
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from paceline.errors import EngineDeadError, EngineStalledError, InvalidRequestError, PacelineError

logger = logging.getLogger(__name__)

_UNREADABLE = "There was an error parsing the body"  # FastAPI's words for bytes, numbers and depths that json refuses

_UNION_MEMBERS = frozenset({  # pydantic puts their names into the path of a field
    "str", "int", "float", "bool", "dict", "TextPart", "ToolChoice", "FlatChoice", "FlatAllowed", "InputText",
    "InputMessage", "InputCall", "InputResult", "list[InputText]", "list[TextPart]",
})  # fmt: skip

_SHOULD_BE, _AN_OBJECT = "Input should be ", "a valid dictionary or object to extract fields from"  # pydantic's
_MOST = 2000  # characters of a message

CLIENT_GONE = 499  # nobody reads this answer; the number is for the access log


class UnknownModelError(InvalidRequestError):
    """404: the request names a model that is not served."""


class BodyTooLargeError(InvalidRequestError):
    """413: more bytes than any sensible request has."""


class BodyTimeoutError(PacelineError):
    """408: the body did not arrive in time."""


class WrongKeyError(PacelineError):
    """401: the request has no API key, or one that is not known."""

    def __init__(self, *, is_missing: bool) -> None:
        if is_missing:
            super().__init__("This server asks for an API key: send the header 'Authorization: Bearer KEY'.")
        else:
            super().__init__("This API key is not known here.")


class TooManyRequestsError(PacelineError):
    """429: not now. `retry_after` is in seconds."""

    def __init__(self, message: str, retry_after: int, code: str) -> None:
        super().__init__(f"{message} Try again in {retry_after} s.")
        self.retry_after = retry_after
        self.code = code


class RequestTimeoutError(PacelineError):
    """504: the answer was not finished in the time that the server gives a request."""


class ShuttingDownError(PacelineError):
    """503: the server was asked to stop before this answer was finished."""


class NotReadyError(PacelineError):
    """503: the model is still being loaded."""


class RequestFailedError(RuntimeError):
    """The engine accepted the request and could not finish it."""


class ClientGoneError(Exception):
    """The client hung up before the answer was ready."""


def error_body(error: BaseException) -> tuple[int, dict[str, Any]]:
    """Status and body of an error that one request met."""
    match error:
        case UnknownModelError():
            return 404, _body(str(error), "invalid_request_error", error.param, error.code)
        case BodyTooLargeError():
            return 413, _body(str(error), "invalid_request_error", error.param, "request_too_large")
        case WrongKeyError():
            return 401, _body(str(error), "authentication_error", None, "invalid_api_key")
        case BodyTimeoutError():
            return 408, _body(str(error), "invalid_request_error", None, "body_timeout")
        case TooManyRequestsError():
            return 429, _body(str(error), "rate_limit_error", None, error.code)
        case RequestTimeoutError():
            return 504, _body(str(error), "timeout", None, "request_timeout")
        case InvalidRequestError():
            return 400, _body(str(error), "invalid_request_error", error.param, error.code)
        case EngineDeadError():
            return 503, _body(f"The engine is not running: {error}", "service_unavailable", None, "engine_dead")
        case EngineStalledError():
            return 503, _body(str(error), "service_unavailable", None, "engine_stalled")
        case ShuttingDownError():
            message = "The server is shutting down; it could not finish this request."
            return 503, _body(message, "service_unavailable", None, "shutting_down")
        case NotReadyError():
            message = "The model is still being loaded; ask again soon. /health/ready says when it is there."
            return 503, _body(message, "service_unavailable", None, "model_loading")
        case RequestFailedError():
            return 500, _body(str(error), "internal_error", None, "generation_failed")
        case _:
            return 500, _body("Internal error; the server's log has the details.", "internal_error", None, None)


def _body(message: str, kind: str, param: str | None, code: str | None) -> dict[str, Any]:
    return {"error": {"message": _cut(message, _MOST), "type": kind, "param": param and _cut(param, 200), "code": code}}


def _cut(text: str, most: int) -> str:
    """Whatever a request names is quoted in part: an answer of megabytes helps nobody."""
    return text if len(text) <= most else f"{text[:most]}…"


def error_response(error: BaseException, headers: Mapping[str, str] | None = None) -> Response:
    status, body = error_body(error)
    own = {}
    if isinstance(error, WrongKeyError):
        own["WWW-Authenticate"] = "Bearer"
    elif isinstance(error, TooManyRequestsError):
        own["Retry-After"] = str(error.retry_after)
    return json_response(body, status, {**own, **(headers or {})})


def json_response(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    try:
        content = msgspec.json.encode(body)
    except UnicodeEncodeError:  # it quotes half of a surrogate pair, which JSON can carry and UTF-8 cannot
        content = json.dumps(body).encode()
    return Response(content, status, headers=dict(headers or {}), media_type="application/json")


def add_error_handlers(app: FastAPI) -> None:
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(ClientGoneError, _on_client_gone)
    for kind in (PacelineError, RequestFailedError, Exception):
        app.add_exception_handler(kind, _on_error)


async def _on_error(_request: Request, error: Exception) -> Response:
    return error_response(error)


async def _on_client_gone(_request: Request, _error: Exception) -> Response:
    return Response(status_code=CLIENT_GONE)


async def _on_http_error(request: Request, error: Exception) -> Response:
    """Unknown paths and methods, and bodies that Starlette cannot read."""
    assert isinstance(error, HTTPException)
    if isinstance(error.__cause__, InvalidRequestError):  # of json_body.py; FastAPI hides it behind words of its own
        return error_response(error.__cause__)
    messages = {
        404: f"No such path: {request.method} {request.url.path}. The API is under /v1; /openapi.json describes it.",
        405: f"{request.url.path} does not take {request.method}.",
    }
    message = messages.get(error.status_code, str(error.detail))
    code = "not_found" if error.status_code == 404 else None
    if message == _UNREADABLE:
        message, code = "The body cannot be read: send JSON in UTF-8, not nested too deeply.", "invalid_json"
    body = _body(message, "invalid_request_error", None, code)
    return json_response(body, error.status_code, error.headers)


async def _on_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    errors = error.errors()
    first = _most_precise(errors)
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, InvalidRequestError):
        return await _on_error(request, _located(cause, first["loc"]))
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", first["msg"])
        return json_response(
            _body(f"The body is not valid JSON: {reason}.", "invalid_request_error", None, "invalid_json"), 400
        )
    if len(first["loc"]) < 2:
        return json_response(_body(_whole_body_message(request), "invalid_request_error", None, None), 400)
    param, message = _field_message(first, _alternatives(errors, first))
    return json_response(_body(message, "invalid_request_error", param, None), 400)


def _most_precise(errors: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Of the first wrong field. Each member of a union complains; the one that got furthest was meant."""
    field = errors[0]["loc"][:2]
    return max((error for error in errors if error["loc"][:2] == field), key=lambda error: len(error["loc"]))


def _located(error: InvalidRequestError, location: Sequence[str | int]) -> InvalidRequestError:
    """An error that one message of a chat raised, with the path of its field: messages[0].name."""
    if len(location) < 3:  # of the whole body, or of a field that names itself
        return error
    inner = (error.param or "").split(".")
    return InvalidRequestError(f"{_path(location[1:])}: {error}", param=_path([*location[1:], *inner]), code=error.code)


def _whole_body_message(request: Request) -> str:
    kind = request.headers.get("content-type", "none")
    if not kind.startswith("application/json"):
        return f"The body must be JSON: send the header 'Content-Type: application/json', not '{kind}'."
    return "The body must be a JSON object."


def _alternatives(errors: Sequence[Mapping[str, Any]], chosen: Mapping[str, Any]) -> str:
    """What the field should be; where it may be one of several kinds, all of them."""
    depth, path = len(chosen["loc"]), _path(chosen["loc"])
    same = (error for error in errors if len(error["loc"]) == depth and _path(error["loc"]) == path)
    kinds = dict.fromkeys(
        str(error["msg"]).removeprefix(_SHOULD_BE).replace(_AN_OBJECT, "a valid object")
        for error in same
        if str(error["msg"]).startswith(_SHOULD_BE)
    )
    return _SHOULD_BE + " or ".join(kinds) if kinds else str(chosen["msg"])


def _field_message(error: Mapping[str, Any], wrong: str) -> tuple[str, str]:
    """The field's name as OpenAI writes it, messages[0].content, and what is wrong with it."""
    location = error["loc"][1:-2] if error["loc"][-1] == "[key]" else error["loc"][1:]  # a key is no field
    param = _path(location)
    if error["type"] == "missing":
        return param, f"Missing required field '{param}'."
    if error["type"] == "extra_forbidden":
        return param, f"Unknown field '{param}'."
    message = wrong.removeprefix("Value error, ")
    return param, f"'{param}' is wrong: {message[:1].lower()}{message[1:]}."


def _path(location: Sequence[str | int]) -> str:
    """Field names and indices; the names of union members, which pydantic puts in between, are left out."""
    path = str(location[0])
    for part in location[1:]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() and part not in _UNION_MEMBERS:
            path += f".{part}"
    return path
