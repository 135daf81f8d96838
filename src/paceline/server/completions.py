"""POST /v1/completions: one prompt or several, as text or token ids."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass

from fastapi import APIRouter, Request, Response

from paceline.errors import InvalidRequestError
from paceline.plan import TokenLogprobs
from paceline.server.errors import json_response
from paceline.server.generation import Generation
from paceline.server.json_body import JsonRoute
from paceline.server.prompt_field import MAX_PROMPTS, of_prompt
from paceline.server.protocol import CompletionRequest
from paceline.server.responses import Json, envelope, metrics, prompt_logprobs, text_choice, text_logprobs, usage
from paceline.server.service import ServerState
from paceline.server.streaming import DONE, Events, event, open_stream, while_connected

MAX_SEQUENCES = MAX_PROMPTS  # of one request: prompts * n


def completions_router(state: ServerState) -> APIRouter:
    router = APIRouter(route_class=JsonRoute)

    @router.post("/v1/completions")
    async def completions(body: CompletionRequest, request: Request) -> Response:
        state.check_model(body.model)
        params = body.sampling_params(state.config.max_logprobs)
        prompts = await while_connected(request.receive, state.requests, _token_ids(state, body, params.n))
        answer = _TextAnswer(state, body)
        generation = state.generation(
            request.scope,
            answer.name,
            prompts,
            params,
            priority=body.priority,
            cache_salt=body.cache_salt,
            only_prompt=body.only_prompt,
        )
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
    found = []
    for number, prompt in enumerate(prompts):
        try:
            found.append(await state.prompt(prompt, body.add_special_tokens))
        except InvalidRequestError as error:
            raise of_prompt(error, number) if len(prompts) > 1 else error from None
    return found


@dataclass(frozen=True, slots=True)
class _Echo:
    """What of the prompt stands before an answer; empty unless echo was asked for."""

    text: str = ""
    token_ids: Sequence[int] = ()
    logprobs: Sequence[TokenLogprobs | None] = ()


class _TextAnswer:
    def __init__(self, state: ServerState, body: CompletionRequest) -> None:
        self._state = state
        self._body = body
        self._created = int(time.time())
        self.name = f"cmpl-{uuid.uuid4().hex}"

    async def complete(self, generation: Generation) -> Json:
        choices = []
        for index, answer in enumerate(await generation.collect()):
            echo = self._echo(generation, index)
            logprobs = self._logprobs(echo, answer.token_ids, answer.logprobs, 0)
            choice = text_choice(index, echo.text + answer.text, answer.finish_reason, logprobs)
            choice["stop_reason"] = answer.stop_reason
            if self._body.return_token_ids:
                prompt_token_ids = generation.prompts[generation.prompt_of(index)]
                choice |= {"token_ids": answer.token_ids, "prompt_token_ids": prompt_token_ids}
            if self._body.prompt_logprobs is not None:
                prompt = generation.prompt_of(index)
                entries = generation.prompt_logprobs[prompt] or []
                choice["prompt_logprobs"] = prompt_logprobs(
                    generation.prompts[prompt], entries, self._state.token_bytes
                )
            choices.append(choice)
        body = envelope(self.name, "text_completion", self._created, self._body.model, choices)
        return body | {"usage": usage(generation), "metrics": self._metrics(generation)}

    async def events(self, generation: Generation) -> Events:
        offsets = [0] * generation.num_choices  # characters of the tokens sent so far
        begun: set[int] = set()
        origins = self._state.token_origins(generation) if self._body.include_token_origins else None
        async with aclosing(generation.deltas()) as deltas:
            async for index, delta in deltas:
                is_first = index not in begun
                echo = self._echo(generation, index) if is_first else _Echo()
                begun.add(index)
                logprobs = self._logprobs(echo, delta.token_ids, delta.logprobs or [], offsets[index])
                if logprobs:
                    offsets[index] += sum(map(len, logprobs["tokens"]))
                text = echo.text + delta.text
                choice = text_choice(index, text, delta.finish_reason, logprobs)
                if self._body.return_token_ids:
                    choice["token_ids"] = delta.token_ids
                    if is_first:
                        choice["prompt_token_ids"] = generation.prompts[generation.prompt_of(index)]
                if origins is not None and delta.token_ids:
                    choice = origins.mark(choice, index, delta)
                if text or logprobs or delta.finish_reason or self._body.return_token_ids or origins is not None:
                    yield self._chunk(generation, [choice])
        if self._body.include_usage:
            yield self._last_chunk(generation)
        yield DONE

    def _echo(self, generation: Generation, index: int) -> _Echo:
        if not self._body.echo:
            return _Echo()
        number = generation.prompt_of(index)
        given, token_ids = self._body.prompts()[number], generation.prompts[number]
        text = given if isinstance(given, str) else self._state.tokenizer.decode(token_ids, skip_special_tokens=False)
        return _Echo(text, token_ids, [None, *(generation.prompt_logprobs[number] or [])])

    def _logprobs(
        self, echo: _Echo, token_ids: Sequence[int], entries: Sequence[TokenLogprobs], offset: int
    ) -> Json | None:
        if self._body.logprobs is None or not (echo.token_ids or entries):
            return None
        return text_logprobs([*echo.token_ids, *token_ids], [*echo.logprobs, *entries], self._state.token_bytes, offset)

    def _chunk(self, generation: Generation, choices: list[Json]) -> bytes:
        body = envelope(self.name, "text_completion", self._created, self._body.model, choices)
        if self._body.include_usage:
            body["usage"] = usage(generation) if self._body.usage_in_every_chunk else None
        return event(body)

    def _last_chunk(self, generation: Generation) -> bytes:
        """Usage and metrics, of all answers together."""
        body = envelope(self.name, "text_completion", self._created, self._body.model, [])
        return event(body | {"usage": usage(generation), "metrics": self._metrics(generation)})

    def _metrics(self, generation: Generation) -> Json:
        return metrics(generation.speculation, self._state.config.num_speculative_tokens)
