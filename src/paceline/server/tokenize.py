"""POST /tokenize and /detokenize, in vLLM's shape. No engine is asked; texts as long as a prompt may be are taken."""

from __future__ import annotations

from typing import Any, ClassVar

from fastapi import APIRouter, Request, Response
from pydantic import Field, model_validator

from paceline.arguments.foreign import Foreign
from paceline.errors import InvalidRequestError
from paceline.server.errors import json_response
from paceline.server.fields import Body, Items, TokenId
from paceline.server.json_body import JsonRoute
from paceline.server.messages import ChatMessage, TemplateArguments
from paceline.server.service import ServerState
from paceline.server.streaming import while_connected
from paceline.server.tools.fields import MAX_TOOLS, Tool
from paceline.server.tools.plan import NO_TOOLS
from paceline.server.unsupported import TOKENIZE


class TokenizeRequest(Body, TemplateArguments):
    """A text, or the messages of a chat, which the model's template turns into one."""

    unsupported: ClassVar[dict[str, Foreign]] = TOKENIZE

    model: str | None = None
    prompt: str | None = None
    messages: Items[ChatMessage] | None = Field(None, min_length=1)
    add_special_tokens: bool | None = Field(None, description="Default: true for a prompt; a template adds its own.")
    return_token_strs: bool | None = None
    tools: list[Tool] | None = Field(None, max_length=MAX_TOOLS)

    @model_validator(mode="after")
    def _one_of_the_two(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise InvalidRequestError("Give either 'prompt' or 'messages'.", param="prompt")
        if self.messages is None:
            for name in (*TemplateArguments.model_fields, "tools"):
                if getattr(self, name) is not None:
                    raise InvalidRequestError(f"'{name}' belongs to 'messages', not to 'prompt'.", param=name)
        elif self.add_special_tokens:
            raise InvalidRequestError(
                "'add_special_tokens' belongs to 'prompt'; a chat template writes its own special tokens.",
                param="add_special_tokens",
            )
        return self


class DetokenizeRequest(Body):
    model: str | None = None
    tokens: Items[TokenId]


def tokenize_router(state: ServerState) -> APIRouter:
    router = APIRouter(route_class=JsonRoute)

    @router.post("/tokenize")
    async def tokenize(body: TokenizeRequest, request: Request) -> Response:
        if body.model is not None:
            state.check_model(body.model)
        tokens = await while_connected(request.receive, state.requests, _token_ids(state, body))
        answer: dict[str, Any] = {
            "count": len(tokens),
            "max_model_len": state.config.model.max_model_len,
            "tokens": tokens,
            "token_strs": state.tokenizer.token_strings(tokens) if body.return_token_strs else None,
        }
        return json_response(answer)

    @router.post("/detokenize")
    async def detokenize(body: DetokenizeRequest, request: Request) -> Response:
        if body.model is not None:
            state.check_model(body.model)
        text = await while_connected(request.receive, state.requests, state.text(body.tokens))
        return json_response({"prompt": text})

    return router


async def _token_ids(state: ServerState, body: TokenizeRequest) -> list[int]:
    if body.messages is not None:
        arguments = body.template_arguments()
        if body.tools:
            if state.tool_format is None:
                raise InvalidRequestError(f"tools cannot be used: {NO_TOOLS}", param="tools")
            arguments["tools"] = [tool.for_template() for tool in body.tools]
        return await state.chat_prompt(body.messages, arguments)
    return await state.prompt(body.prompt or "", body.add_special_tokens)
