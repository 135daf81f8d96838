"""What stands in front of vLLM: Paceline's health and metrics; every other path goes through, streams included.

Contract
- /health, /health/live, /health/ready follow the process and its progress (`watch.py`), not vLLM's web server.
- /metrics is vLLM's own text and the same again under `paceline:`, so that dashboards and alerts fit both runtimes.
- Keys, limits and TLS are those of Paceline's own server (`server/access/`).
- A client that hangs up ends its request in vLLM. Nothing is buffered on the way back.
- Fields that vLLM would ignore without a word are refused (`ignored.py`).
- vLLM cannot be reached: 503 with OpenAI's error body; in the middle of a stream, an event with it, then [DONE].
"""

from __future__ import annotations

from collections.abc import Iterable

import httpx
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from paceline import __version__
from paceline.errors import EngineDeadError, InvalidRequestError
from paceline.runtimes.vllm.ignored import refuse_ignored
from paceline.runtimes.vllm.metrics import with_paceline_names
from paceline.runtimes.vllm.watch import Watch
from paceline.server.access.limits import Limits
from paceline.server.access.middleware import Guard
from paceline.server.access.options import AccessOptions
from paceline.server.errors import ClientGoneError, NotReadyError, ShuttingDownError, error_body, json_response
from paceline.server.health import RETRY_SECONDS
from paceline.server.requests import Requests, RequestsMiddleware
from paceline.server.streaming import DONE, event, while_connected

Headers = list[tuple[bytes, bytes]]

# Of one connection, not of the message: each side has its own (RFC 9110, 7.6.1).
_HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te", b"trailer", b"upgrade")
) | {b"transfer-encoding"}
_NOT_FORWARDED = _HOP_BY_HOP | {b"host", b"authorization", b"content-length", b"expect"}
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def create_proxy(
    watch: Watch,
    client: httpx.AsyncClient,
    key: str,
    requests: Requests,
    version: str,
    access: AccessOptions | None = None,
) -> ASGIApp:
    """`client` has vLLM's address as its base; `key` is what vLLM asks for; `version` is vLLM's."""
    access = access or AccessOptions()
    proxy = RequestsMiddleware(
        _Proxy(watch, client, key, requests, version),
        requests,
        max_body_bytes=access.max_body_bytes,
        body_timeout=access.body_timeout,
    )
    return Guard(proxy, access, Limits(access, max_num_seqs=1))  # the queue is vLLM's: nothing is taken from it here


class _Proxy:
    def __init__(self, watch: Watch, client: httpx.AsyncClient, key: str, requests: Requests, version: str) -> None:
        self._watch = watch
        self._client = client
        self._key = key
        self._requests = requests
        self._version = version

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path = scope["path"]
        if path in ("/health", "/health/ready", "/health/live"):
            await self._health(path)(scope, receive, send)
        elif path == "/version":
            body = {"version": __version__, "runtime": "vllm", "vllm_version": self._version}
            await json_response(body)(scope, receive, send)
        elif path == "/metrics":
            await self._metrics(scope, receive, send)
        elif self._watch.state == "loading":
            await _loading()(scope, receive, send)
        else:
            await self._pass_on(scope, receive, send)

    def _health(self, path: str) -> ASGIApp:
        state = self._watch.state
        if state == "ready" or (state == "loading" and path == "/health/live"):
            return json_response({"status": "ok" if state == "ready" else "loading"})
        if state == "loading":
            return _loading()
        reason = "vLLM has ended" if state == "dead" else "vLLM has requests and makes no progress"
        status, body = error_body(EngineDeadError(f"{reason}."))
        return json_response(body, status)

    async def _metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        """With the last counters, and engine_up 0, when vLLM is dead."""
        try:
            text = await self._watch.metrics()
        except httpx.HTTPError:
            text = self._watch.last_metrics
        body = with_paceline_names(text, model=self._watch.model, healthy=self._watch.state == "ready").encode()
        await Response(body, media_type=_METRICS_TYPE)(scope, receive, send)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _body(receive)
        try:
            refuse_ignored(scope["path"], body)
        except InvalidRequestError as error:
            status, told = error_body(error)
            await json_response(told, status)(scope, receive, send)
            return
        request = self._client.build_request(
            scope["method"],
            httpx.URL(self._client.base_url, raw_path=_raw_path(scope)),
            headers=_forwarded(scope["headers"], self._key),
            content=body,
        )
        answer = _Answer(send)
        try:
            await while_connected(receive, self._requests, self._exchange(request, answer))
        except ClientGoneError:
            return
        except ShuttingDownError as error:
            await answer.fail(error, scope, receive)
        except httpx.HTTPError as error:
            await answer.fail(EngineDeadError(f"vLLM did not answer ({type(error).__name__})."), scope, receive)

    async def _exchange(self, request: httpx.Request, answer: _Answer) -> None:
        response = await self._client.send(request, stream=True)
        try:
            await answer.start(response.status_code, _returned(response.headers.raw))
            async for chunk in response.aiter_raw():
                await answer.more(chunk)
            await answer.end()
        finally:
            await response.aclose()  # an unfinished one: the connection is closed, and vLLM aborts


class _Answer:
    """The response as far as it has been sent."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._started = self._is_stream = False

    async def start(self, status: int, headers: Headers) -> None:
        self._is_stream = any(name == b"content-type" and b"text/event-stream" in value for name, value in headers)
        self._started = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def more(self, chunk: bytes) -> None:
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def fail(self, error: Exception, scope: Scope, receive: Receive) -> None:
        """Where half of a plain answer is out already, the connection breaks: nothing else tells the client."""
        status, body = error_body(error)
        if not self._started:
            await json_response(body, status)(scope, receive, self._send)
        elif self._is_stream:
            await self.more(event(body) + DONE)
            await self.end()
        else:
            raise error


def _loading() -> ASGIApp:
    status, body = error_body(NotReadyError())
    return json_response(body, status, {"retry-after": str(RETRY_SECONDS)})


def _raw_path(scope: Scope) -> bytes:
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope.get("query_string", b"")
    return path + (b"?" + query if query else b"")


def _forwarded(headers: Iterable[tuple[bytes, bytes]], key: str) -> Headers:
    kept = [(name, value) for name, value in headers if name.lower() not in _NOT_FORWARDED]
    return [*kept, (b"authorization", f"Bearer {key}".encode())]


def _returned(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    dropped = _HOP_BY_HOP | {b"server", b"date"}  # uvicorn writes its own
    return [(name.lower(), value) for name, value in headers if name.lower() not in dropped]


async def _body(receive: Receive) -> bytes:
    """Short: RequestsMiddleware has read and measured it. A method that has none gives an empty one."""
    chunks, more = [], True
    while more:
        message = await receive()
        chunks.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(chunks)
