"""POST /v1/completions: one prompt or several, as text or token ids."""

from __future__ import annotations

import time
import uuid
from contextlib import aclosing

from fastapi import APIRouter, Request, Response

from paceline.errors import InvalidRequestError
from paceline.server.errors import json_response
from paceline.server.generation import Generation
from paceline.server.protocol import CompletionRequest
from paceline.server.responses import Json, envelope, metrics, text_choice, text_logprobs, usage
from paceline.server.service import ServerState
from paceline.server.streaming import DONE, Events, event, open_stream, while_connected

MAX_SEQUENCES = 2048  # of one request: prompts * n


def completions_router(state: ServerState) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/completions")
    async def completions(body: CompletionRequest, request: Request) -> Response:
        state.check_model(body.model)
        params = body.sampling_params()
        prompts = await while_connected(request.receive, state.requests, _token_ids(state, body, params.n))
        answer = _TextAnswer(state, body)
        generation = Generation(state.engine, answer.name, prompts, params)
        if body.stream:
            return await open_stream(request, state.requests, answer.events(generation))
        return json_response(await while_connected(request.receive, state.requests, answer.complete(generation)))

    return router


async def _token_ids(state: ServerState, body: CompletionRequest, n: int) -> list[list[int]]:
    prompts = body.prompts()
    if not prompts:
        raise InvalidRequestError("prompt is an empty list; give at least one prompt.", param="prompt")
    if len(prompts) * n > MAX_SEQUENCES:
        raise InvalidRequestError(
            f"prompt has {len(prompts)} prompts with n={n}; their product must be at most {MAX_SEQUENCES}. Send "
            "several requests.",
            param="prompt",
        )
    return [await state.prompt(prompt, body.add_special_tokens) for prompt in prompts]


class _TextAnswer:
    def __init__(self, state: ServerState, body: CompletionRequest) -> None:
        self._state = state
        self._body = body
        self._created = int(time.time())
        self.name = f"cmpl-{uuid.uuid4().hex}"

    async def complete(self, generation: Generation) -> Json:
        choices = []
        for index, answer in enumerate(await generation.collect()):
            logprobs = None
            if self._body.logprobs is not None:
                logprobs = text_logprobs(answer.token_ids, answer.logprobs, self._state.token_bytes, 0)
            choice = text_choice(index, answer.text, answer.finish_reason, logprobs)
            choices.append(choice | {"stop_reason": answer.stop_reason})
        body = envelope(self.name, "text_completion", self._created, self._body.model, choices)
        return body | {"usage": usage(generation), "metrics": metrics(generation.speculation)}

    async def events(self, generation: Generation) -> Events:
        offsets = [0] * generation.num_choices  # characters of the tokens sent so far
        async with aclosing(generation.deltas()) as deltas:
            async for index, delta in deltas:
                logprobs = None
                if self._body.logprobs is not None and delta.logprobs:
                    logprobs = text_logprobs(delta.token_ids, delta.logprobs, self._state.token_bytes, offsets[index])
                    offsets[index] += sum(map(len, logprobs["tokens"]))
                if delta.text or logprobs or delta.finish_reason:
                    yield self._chunk([text_choice(index, delta.text, delta.finish_reason, logprobs)])
        if self._body.include_usage:
            yield self._chunk([], {"usage": usage(generation), "metrics": metrics(generation.speculation)})
        yield DONE

    def _chunk(self, choices: list[Json], extra: Json | None = None) -> bytes:
        body = envelope(self.name, "text_completion", self._created, self._body.model, choices)
        if self._body.include_usage:
            body["usage"] = None
        return event(body | (extra or {}))
