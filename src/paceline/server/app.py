"""create_app: the OpenAI-compatible API over an engine client."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter, FastAPI, Response
from prometheus_client import CONTENT_TYPE_LATEST

from paceline import __version__
from paceline.config import EngineConfig
from paceline.errors import EngineDeadError
from paceline.server.chat import chat_router
from paceline.server.completions import completions_router
from paceline.server.engine_client import EngineClient
from paceline.server.errors import add_error_handlers, json_response
from paceline.server.metrics import render_metrics
from paceline.server.requests import Requests, RequestsMiddleware
from paceline.server.responses import Json
from paceline.server.service import ServerState
from paceline.server.tokenize import tokenize_router
from paceline.tokenizer import Tokenizer


def create_app(
    engine_client: EngineClient,
    served_model_names: Sequence[str],
    tokenizer: Tokenizer,
    config: EngineConfig,
    requests: Requests | None = None,
) -> FastAPI:
    """The first of `served_model_names` labels the metrics; requests may use any of them."""
    requests = requests or Requests()
    state = ServerState(engine_client, served_model_names, tokenizer, config, requests)
    app = FastAPI(
        title="Paceline", version=__version__, description="OpenAI-compatible API.", docs_url=None, redoc_url=None
    )
    add_error_handlers(app)
    app.add_middleware(RequestsMiddleware, requests=requests, headers=_headers(config))
    routers = (chat_router, completions_router, tokenize_router, _models_router, _status_router)
    for router in routers:
        app.include_router(router(state))
    return app


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

    @router.get("/v1/models")
    async def list_models() -> Response:
        return json_response({"object": "list", "data": [card(name) for name in state.names]})

    @router.get("/v1/models/{name:path}")
    async def retrieve_model(name: str) -> Response:
        state.check_model(name)
        return json_response(card(name))

    return router


def _status_router(state: ServerState) -> APIRouter:
    router = APIRouter()

    @router.get("/health")
    async def health() -> Response:
        """200 while the engine lives and makes progress, else 503."""
        if not state.engine.is_healthy:
            raise EngineDeadError("it ended, or it makes no progress.")
        return json_response({"status": "ok"})

    @router.get("/metrics")
    async def metrics() -> Response:
        stats = await state.engine.stats()
        return Response(render_metrics(stats, state.names[0]), media_type=CONTENT_TYPE_LATEST)

    @router.get("/version")
    async def version() -> Response:
        return json_response({"version": __version__})

    return router
