"""Every field of the installed openai package's requests is honoured or refused by name; a new one cannot be missed."""

from __future__ import annotations

from typing import Any, get_args, get_origin, get_type_hints

import pytest
from openai.types import chat as chat_types
from openai.types import completion_create_params, shared_params
from openai.types.chat import completion_create_params as chat_params
from pydantic import BaseModel
from test_server_api import CHAT_PATH, MESSAGES, TEXT_PATH, Server, refused

from paceline.server.messages import ChatMessage, TextPart
from paceline.server.protocol import ChatRequest, CompletionRequest, GenerationRequest, StreamOptions
from paceline.server.tools.fields import AllowedTools, FunctionDefinition, NamedTool, Tool, ToolCall

REQUESTS: list[tuple[str, type, type[GenerationRequest]]] = [
    (CHAT_PATH, chat_params.CompletionCreateParamsNonStreaming, ChatRequest),
    (TEXT_PATH, completion_create_params.CompletionCreateParamsNonStreaming, CompletionRequest),
]
PARTS: list[tuple[type, type[BaseModel], set[str]]] = [  # the last: refused as unknown, by the path of the field
    (chat_types.ChatCompletionStreamOptionsParam, StreamOptions, set()),
    (chat_types.ChatCompletionContentPartTextParam, TextPart, {"prompt_cache_breakpoint"}),
    (chat_types.ChatCompletionSystemMessageParam, ChatMessage, set()),
    (chat_types.ChatCompletionDeveloperMessageParam, ChatMessage, set()),
    (chat_types.ChatCompletionUserMessageParam, ChatMessage, set()),
    (chat_types.ChatCompletionAssistantMessageParam, ChatMessage, set()),
    (chat_types.ChatCompletionToolMessageParam, ChatMessage, set()),
    (chat_types.ChatCompletionFunctionToolParam, Tool, set()),
    (shared_params.FunctionDefinition, FunctionDefinition, set()),
    (chat_types.ChatCompletionMessageFunctionToolCallParam, ToolCall, set()),
    (chat_types.ChatCompletionNamedToolChoiceParam, NamedTool, set()),
    (chat_types.ChatCompletionAllowedToolsParam, AllowedTools, set()),
]


@pytest.mark.parametrize(("path", "params", "body"), REQUESTS)
def test_every_field_of_a_request_is_known(path: str, params: type, body: type[GenerationRequest]) -> None:
    missing = get_type_hints(params).keys() - body.model_fields.keys() - body.unsupported.keys()
    assert not missing, f"honour these or give a reason in server/unsupported.py: {sorted(missing)}"
    assert not body.model_fields.keys() & body.unsupported.keys()


@pytest.mark.parametrize(("params", "model", "refused_fields"), PARTS)
def test_every_field_of_its_parts_is_known(params: type, model: type[BaseModel], refused_fields: set[str]) -> None:
    assert get_type_hints(params).keys() - model.model_fields.keys() == refused_fields
    assert model.model_config["extra"] == "forbid"


@pytest.mark.parametrize(("path", "params", "body"), REQUESTS)
def test_no_field_takes_just_anything(path: str, params: type, body: type[GenerationRequest]) -> None:
    """A field that is read but never checked would take this; those about who asks take any text."""
    server, anything = Server(), {"surely": "not"}
    start: dict[str, Any] = {"messages": MESSAGES} if path == CHAT_PATH else {"prompt": "a"}
    for name in get_type_hints(params):
        error = refused(server.request("POST", path, json={"model": "fake", **start, name: anything}))
        assert str(error["param"]).startswith(name), (name, error)


def test_every_role_and_kind_of_tool_is_known_or_refused() -> None:
    """A new member of OpenAI's unions must be looked at here."""
    roles = {hint.__name__ for hint in _members(chat_types.ChatCompletionMessageParam)}
    assert roles == {
        f"ChatCompletion{role}MessageParam" for role in ("System", "Developer", "User", "Assistant", "Tool", "Function")
    }
    kinds = {hint.__name__ for hint in _members(chat_types.ChatCompletionToolUnionParam)}
    assert kinds == {"ChatCompletionFunctionToolParam", "ChatCompletionCustomToolParam"}
    assert [member for member in _members(chat_types.ChatCompletionToolChoiceOptionParam) if isinstance(member, type)]


def _members(union: Any) -> list[Any]:
    return [part for member in get_args(union) for part in (_members(member) if get_origin(member) else [member])]
