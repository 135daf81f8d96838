"""POST /v1/chat/completions."""

from __future__ import annotations

import time
import uuid
from contextlib import aclosing

from fastapi import APIRouter, Request, Response

from paceline.errors import InvalidRequestError
from paceline.sequence import SequenceDelta
from paceline.server.errors import json_response
from paceline.server.generation import Generation
from paceline.server.json_body import JsonRoute
from paceline.server.protocol import ChatRequest
from paceline.server.responses import (
    Json,
    chat_choice,
    chat_delta,
    chat_logprobs,
    envelope,
    metrics,
    prompt_logprobs,
    usage,
)
from paceline.server.service import ServerState
from paceline.server.streaming import DONE, Events, event, open_stream, while_connected
from paceline.server.tools.answer import ToolAnswer
from paceline.server.tools.plan import ToolPlan


def chat_router(state: ServerState) -> APIRouter:
    router = APIRouter(route_class=JsonRoute)

    @router.post("/v1/chat/completions")
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        state.check_model(body.model)
        plan = body.plan_tools(state.tool_format)
        params = body.sampling_params(state.config.max_logprobs, plan)
        answer = _ChatAnswer(state, body, plan)
        try:
            tokenised = state.chat_prompt(body.messages, body.template_arguments(), plan)
            prompt = await while_connected(request.receive, state.requests, tokenised)
            generation = state.generation(
                request.scope, answer.name, [prompt], params, priority=body.priority, cache_salt=body.cache_salt
            )
            if body.stream:
                return await open_stream(request, state.requests, answer.events(generation))
            return json_response(await while_connected(request.receive, state.requests, answer.complete(generation)))
        except InvalidRequestError as error:
            if error.param != "prompt":
                raise
            raise InvalidRequestError(str(error), param="messages", code=error.code) from None

    return router


class _ChatAnswer:
    def __init__(self, state: ServerState, body: ChatRequest, plan: ToolPlan | None) -> None:
        self._state = state
        self._body = body
        self._plan = plan
        self._created = int(time.time())
        self.name = f"chatcmpl-{uuid.uuid4().hex}"

    async def complete(self, generation: Generation) -> Json:
        answers = await generation.collect()
        spell = self._state.token_bytes
        choices = [
            chat_choice(
                index,
                answer,
                chat_logprobs(answer.token_ids, answer.logprobs, spell) if self._body.logprobs else None,
                self._tools(),
            )
            for index, answer in enumerate(answers)
        ]
        if self._body.return_token_ids:
            for choice, answer in zip(choices, answers, strict=True):
                choice["token_ids"] = answer.token_ids
        body = envelope(self.name, "chat.completion", self._created, self._body.model, choices)
        if self._body.prompt_logprobs is not None:
            entries = generation.prompt_logprobs[0] or []
            body["prompt_logprobs"] = prompt_logprobs(generation.prompts[0], entries, spell)
        if self._body.return_token_ids:
            body["prompt_token_ids"] = generation.prompts[0]
        return body | {"usage": usage(generation), "metrics": self._metrics(generation)}

    async def events(self, generation: Generation) -> Events:
        introduced = False
        tools = [self._tools() for _ in range(generation.num_choices)]
        origins = self._state.token_origins(generation) if self._body.include_token_origins else None
        async with aclosing(generation.deltas()) as deltas:
            async for index, delta in deltas:
                if not introduced:  # the engine has accepted the request
                    introduced = True
                    extra = {"prompt_token_ids": generation.prompts[0]} if self._body.return_token_ids else {}
                    for choice in range(generation.num_choices):
                        yield self._chunk(generation, [chat_delta(choice, {"role": "assistant", "content": ""})], extra)
                choice_now = self._choice(index, delta, tools[index])
                if origins is not None and delta.token_ids:
                    choice_now = origins.mark(choice_now or chat_delta(index, {}), index, delta)
                if choice_now is not None:
                    yield self._chunk(generation, [choice_now])
        if self._body.include_usage:
            yield self._last_chunk(generation)
        yield DONE

    def _tools(self) -> ToolAnswer | None:
        return self._state.tool_answer(self._plan) if self._plan else None

    def _choice(self, index: int, delta: SequenceDelta, tools: ToolAnswer | None) -> Json | None:
        """None if there is nothing to say: what came may be the beginning of a call."""
        logprobs = None
        if self._body.logprobs and delta.logprobs:
            logprobs = chat_logprobs(delta.token_ids, delta.logprobs, self._state.token_bytes)
        content: Json = {"content": delta.text} if delta.text or logprobs else {}
        reason: str | None = delta.finish_reason
        if tools is not None:
            content = tools.delta(delta.text, is_last=reason is not None)
            reason = tools.finish_reason(reason)
        if not (content or logprobs or reason or self._body.return_token_ids):
            return None
        choice = chat_delta(index, content, reason, logprobs)
        return choice | {"token_ids": delta.token_ids} if self._body.return_token_ids else choice

    def _chunk(self, generation: Generation, choices: list[Json], extra: Json | None = None) -> bytes:
        body = envelope(self.name, "chat.completion.chunk", self._created, self._body.model, choices)
        if self._body.include_usage:
            body["usage"] = usage(generation) if self._body.usage_in_every_chunk else None
        return event(body | (extra or {}))

    def _last_chunk(self, generation: Generation) -> bytes:
        """Usage and metrics, of all answers together."""
        body = envelope(self.name, "chat.completion.chunk", self._created, self._body.model, [])
        return event(body | {"usage": usage(generation), "metrics": self._metrics(generation)})

    def _metrics(self, generation: Generation) -> Json:
        return metrics(generation.speculation, self._state.config.num_speculative_tokens)
