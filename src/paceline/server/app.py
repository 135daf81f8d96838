"""create_app: the OpenAI-compatible API over an engine client."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter, FastAPI, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.types import ASGIApp

from paceline import __version__
from paceline.config import EngineConfig
from paceline.logs import num_dropped_lines
from paceline.server.access.limits import Limits
from paceline.server.access.middleware import Guard
from paceline.server.access.options import AccessOptions
from paceline.server.chat import chat_router
from paceline.server.completions import completions_router
from paceline.server.engine_client import EngineClient
from paceline.server.errors import add_error_handlers, json_response
from paceline.server.health import health_router
from paceline.server.json_size import MAX_ENTRIES
from paceline.server.metrics import Snapshot, render_metrics
from paceline.server.page.router import page_router
from paceline.server.paths import get
from paceline.server.requests import Requests, RequestsMiddleware
from paceline.server.responses import Json
from paceline.server.responses_api.router import responses_router
from paceline.server.service import ServerState
from paceline.server.telemetry.client import ObservedClient
from paceline.server.telemetry.live import LiveStatus
from paceline.server.telemetry.middleware import TelemetryMiddleware
from paceline.server.telemetry.telemetry import Telemetry
from paceline.server.tokenize import tokenize_router
from paceline.tokenizer import Tokenizer


def create_app(
    engine_client: EngineClient,
    served_model_names: Sequence[str],
    tokenizer: Tokenizer,
    config: EngineConfig,
    requests: Requests | None = None,
    telemetry: Telemetry | None = None,
    access: AccessOptions | None = None,
) -> FastAPI:
    """The first of `served_model_names` labels the metrics; requests may use any of them."""
    requests, telemetry = requests or Requests(), telemetry or Telemetry()
    engine = ObservedClient(engine_client, telemetry)
    access = access or AccessOptions()
    limits = Limits(access, config.scheduler.max_num_seqs)
    state = ServerState(engine, served_model_names, tokenizer, config, requests, limits)
    live = LiveStatus(engine, config, served_model_names, telemetry)
    app = _App(
        title="Paceline", version=__version__, description="OpenAI-compatible API.", docs_url=None, redoc_url=None
    )
    app.telemetry, app.state.live = telemetry, live
    add_error_handlers(app)
    app.add_middleware(
        RequestsMiddleware,
        requests=requests,
        headers=_headers(config),
        max_body_bytes=access.max_body_bytes,
        body_timeout=access.body_timeout,
        max_entries=max(MAX_ENTRIES, 2 * config.model.max_model_len),  # a prompt that fits is taken in token ids
    )
    app.add_middleware(Guard, access=access, limits=limits)
    for router in (chat_router, completions_router, responses_router, tokenize_router, _models_router):
        app.include_router(router(state))
    app.include_router(health_router(live))
    app.include_router(_status_router(state, live))
    app.include_router(page_router())
    return app


class _App(FastAPI):
    """FastAPI with the telemetry around everything, answers to unforeseen errors included."""

    telemetry: Telemetry

    def build_middleware_stack(self) -> ASGIApp:
        return TelemetryMiddleware(super().build_middleware_stack(), self.telemetry)


def _headers(config: EngineConfig) -> dict[str, str]:
    """What every response says, streams included, when its text is not the target's."""
    if config.speculative is None or config.speculative.is_lossless:
        return {}
    return {"X-Paceline-Acceptance": "synthetic; the text is not the model's"}


def _models_router(state: ServerState) -> APIRouter:
    router = APIRouter()

    def card(name: str) -> Json:
        return {
            "id": name,
            "object": "model",
            "created": state.created,
            "owned_by": "paceline",
            "max_model_len": state.config.model.max_model_len,
        }

    @get(router, "/v1/models")
    async def list_models() -> Response:
        return json_response({"object": "list", "data": [card(name) for name in state.names]})

    @get(router, "/v1/models/{name:path}")
    async def retrieve_model(name: str) -> Response:
        state.check_model(name)
        return json_response(card(name))

    return router


def _status_router(state: ServerState, live: LiveStatus) -> APIRouter:
    router = APIRouter()

    @get(router, "/metrics")
    async def metrics() -> Response:
        """Prometheus' text format; docs/operations.md says what each metric means."""
        stats = await live.stats()
        snapshot = Snapshot(
            stats, live.telemetry, state.config, state.names[0], state.engine.is_healthy, num_dropped_lines()
        )
        return Response(render_metrics(snapshot), media_type=CONTENT_TYPE_LATEST)

    @get(router, "/v1/paceline/status")
    async def status() -> Response:
        """What the server does just now: rates over the last seconds, acceptance by position, K, queue, KV use."""
        return json_response(await live.document())

    @get(router, "/version")
    async def version() -> Response:
        return json_response({"version": __version__})

    return router
