"""POST /v1/responses: one answer, whole or as events."""

from __future__ import annotations

import time
import uuid
from contextlib import aclosing
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from paceline.errors import InvalidRequestError
from paceline.server.errors import error_body, json_response
from paceline.server.generation import Generation
from paceline.server.json_body import JsonRoute
from paceline.server.responses import metrics
from paceline.server.responses_api.fields import ResponsesRequest, in_own_words
from paceline.server.responses_api.output import Output
from paceline.server.service import ServerState
from paceline.server.streaming import Events, open_stream, while_connected
from paceline.server.tools.formats import HERMES
from paceline.server.tools.parser import Content, Piece
from paceline.server.tools.plan import ToolPlan

Json = dict[str, Any]


def responses_router(state: ServerState) -> APIRouter:
    router = APIRouter(route_class=JsonRoute)

    @router.post("/v1/responses")
    async def responses(body: ResponsesRequest, request: Request) -> Response:
        state.check_model(body.model)
        try:
            chat = body.as_chat()
            plan = chat.plan_tools(state.tool_format)
            params = chat.sampling_params(state.config.max_logprobs, plan)
            tokenised = state.chat_prompt(chat.messages, chat.template_arguments(), plan)
            prompt = await while_connected(request.receive, state.requests, tokenised)
            answer = _Answer(state, body, plan)
            generation = state.generation(
                request.scope, answer.name, [prompt], params, priority=body.priority, cache_salt=chat.cache_salt
            )
            if body.stream:
                return await open_stream(request, state.requests, answer.events(generation), answer.fault)
            return json_response(await while_connected(request.receive, state.requests, answer.complete(generation)))
        except InvalidRequestError as error:
            named = "input" if error.param == "prompt" else error.param
            raise in_own_words(InvalidRequestError(str(error), param=named, code=error.code)) from None

    return router


class _Answer:
    def __init__(self, state: ServerState, body: ResponsesRequest, plan: ToolPlan | None) -> None:
        self._state = state
        self._body = body
        self._created = int(time.time())
        self._parser = state.tool_parser(plan) if plan else None
        self._output = Output((plan.form if plan else HERMES).new_id)
        self._number = 0
        self._generation: Generation | None = None  # whose events are sent
        self.name = f"resp_{uuid.uuid4().hex}"

    async def complete(self, generation: Generation) -> Json:
        (answer,) = await generation.collect()
        self._output.take([*self._pieces(answer.text), *self._last_pieces()])
        status = _status(answer.finish_reason)
        self._output.finish(status)
        return self._response(status, generation)

    async def events(self, generation: Generation) -> Events:
        self._generation = generation
        reason = None
        is_begun = False
        async with aclosing(generation.deltas()) as deltas:
            async for _, delta in deltas:
                if not is_begun:  # the engine has accepted the request
                    is_begun = True
                    for kind in ("response.created", "response.in_progress"):
                        yield self._event({"type": kind, "response": self._response("in_progress", None)})
                for made in self._output.take(self._pieces(delta.text)):
                    yield self._event(made)
                reason = delta.finish_reason or reason
        status = _status(reason)
        for made in [*self._output.take(self._last_pieces()), *self._output.finish(status)]:
            yield self._event(made)
        yield self._event({"type": f"response.{status}", "response": self._response(status, generation)})

    def fault(self, error: Exception) -> bytes:
        """An error in the middle of a stream: what went wrong, and the end of the response, which `error` is not.

        The fields of `error` are OpenAI's; the object "error" beside them is what makes its clients raise.
        """
        status, body = error_body(in_own_words(error) if isinstance(error, InvalidRequestError) else error)
        told = body["error"]
        self._output.abandon()
        response = self._response("failed", self._generation)
        code = "invalid_prompt" if status == 400 else "server_error"  # of those that OpenAI's type allows
        response["error"] = {"code": code, "message": told["message"]}
        flat = {name: told[name] for name in ("code", "message", "param")}
        return self._event({"type": "error", **flat, "error": told}) + self._event(
            {"type": "response.failed", "response": response}
        )

    def _pieces(self, text: str) -> list[Piece]:
        if self._parser is not None:
            return self._parser.feed(text)
        return [Content(text)] if text else []

    def _last_pieces(self) -> list[Piece]:
        return self._parser.finish() if self._parser is not None else []

    def _event(self, body: Json) -> bytes:
        numbered = {**body, "sequence_number": self._number}
        self._number += 1
        return f"event: {body['type']}\ndata: ".encode() + msgspec.json.encode(numbered) + b"\n\n"

    def _response(self, status: str, generation: Generation | None) -> Json:
        """The whole response; without a generation, as it is at the beginning."""
        body = self._body
        asked = body.model_dump(mode="json", by_alias=True, include={"tools", "tool_choice", "text"}, exclude_none=True)
        answer: Json = {
            "id": self.name,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": body.model,
            "output": self._output.items if generation is not None else [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "store": False,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "tools": [{"parameters": None, "strict": None, **tool} for tool in asked.get("tools", [])],
            "tool_choice": asked.get("tool_choice", "auto"),
            "text": asked.get("text", {"format": {"type": "text"}}),
            "truncation": "disabled",
            "usage": None,
        }
        if generation is not None:
            answer["usage"] = _usage(generation)
            answer["metrics"] = metrics(generation.speculation, self._state.config.num_speculative_tokens)
        return answer


def _status(reason: str | None) -> str:
    return "incomplete" if reason == "length" else "completed"


def _usage(generation: Generation) -> Json:
    prompt, completion = generation.num_prompt_tokens, generation.num_completion_tokens
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": generation.num_cached_tokens},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + completion,
    }
