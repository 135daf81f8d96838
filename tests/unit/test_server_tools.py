"""Tools over a fake engine that says what a test wants: choice, enforcement, whole answers and streams, refusals."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from server_fakes import VOCABULARY
from test_server_api import MESSAGES, Server, events, ok, refused

from paceline.sampling_params import SamplingParams
from paceline.sequence import EngineRequest, FinishReason, SequenceDelta
from paceline.server.tools.formats import HERMES, LLAMA3_JSON, MISTRAL, tool_format

TEMPLATES = {
    "hermes": "{{ tools }} <tool_call></tool_call>",
    "llama3_json": '{{ tools }} {"name": , "parameters": } ipython',
    "mistral": "{{ tools }} [TOOL_CALLS]",
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]},
    },
}
TIME = {"type": "function", "function": {"name": "time"}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
TOOLS = [WEATHER, TIME]
NAMED = {"type": "function", "function": {"name": "time"}}


def strict(tool: dict[str, Any]) -> dict[str, Any]:
    return {**tool, "function": {**tool["function"], "strict": True}}


class Speaking(Server):
    """Every answer is `text`, three characters a step."""

    def __init__(self, template: str = "hermes", text: str = CALL) -> None:
        super().__init__()
        self.text = text
        self.asked: list[EngineRequest] = []
        self.prompted: list[dict[str, Any]] = []
        self.tokenizer.chat_template = TEMPLATES.get(template, "")
        self.engine.generate = self.generate  # type: ignore[method-assign]
        apply = self.tokenizer.apply_chat_template
        self.tokenizer.apply_chat_template = lambda messages, **kw: (  # type: ignore[method-assign]
            self.prompted.append({"messages": messages, **kw}),
            apply([{**m, "content": m["content"] or ""} for m in messages]),
        )[1]

    async def generate(self, request: EngineRequest) -> AsyncGenerator[SequenceDelta, None]:
        self.asked.append(request)
        pieces = [self.text[place : place + 3] for place in range(0, len(self.text), 3)]
        for index in range(request.sampling_params.n):
            for piece in pieces:
                yield SequenceDelta(request_id=request.request_id, index=index, token_ids=[2], text=piece)
            yield SequenceDelta(request_id=request.request_id, index=index, finish_reason=FinishReason.STOP)

    @property
    def params(self) -> SamplingParams:
        return self.asked[-1].sampling_params


@pytest.fixture
def server() -> Speaking:
    return Speaking()


def streamed(response: Any) -> tuple[str, list[dict[str, Any]], str]:
    """Content, calls and finish reason, put together as a client does."""
    content, calls, reason = "", {}, None
    for chunk in events(response):
        choice = chunk["choices"][0]
        content += choice["delta"].get("content") or ""
        for piece in choice["delta"].get("tool_calls", []):
            call = calls.setdefault(piece["index"], {"id": piece.get("id"), "type": "function", "function": {}})
            for key, value in piece["function"].items():
                call["function"][key] = call["function"].get(key, "") + value
        reason = choice["finish_reason"] or reason
    return content, list(calls.values()), reason


def without_ids(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    assert all(call.pop("id").startswith("call_") for call in calls)
    return calls


EXPECTED = [{"type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}]


def test_a_call_is_read_and_the_tools_reach_the_template(server: Speaking) -> None:
    (choice,) = ok(server.chat(tools=TOOLS))["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert without_ids(choice["message"]["tool_calls"]) == EXPECTED
    shown = server.prompted[-1]["tools"]
    assert [tool["function"]["name"] for tool in shown] == ["weather", "time"]
    assert server.params.structured_outputs is None


def test_a_stream_says_the_same(server: Speaking) -> None:
    server.text = f"Let me look. {CALL}\n{CALL}"
    content, calls, reason = streamed(server.chat(tools=TOOLS, stream=True))
    (choice,) = ok(server.chat(tools=TOOLS))["choices"]
    assert (
        (content, reason) == ("Let me look.", "tool_calls") == (choice["message"]["content"], choice["finish_reason"])
    )
    assert without_ids(calls) == without_ids(choice["message"]["tool_calls"]) == EXPECTED * 2
    _, calls, _ = streamed(server.chat(tools=TOOLS, stream=True, parallel_tool_calls=False))
    assert len(calls) == 1


def test_an_answer_without_a_call_is_an_answer(server: Speaking) -> None:
    server.text = "It is sunny."
    (choice,) = ok(server.chat(tools=TOOLS, tool_choice="auto"))["choices"]
    assert choice["message"] == {"role": "assistant", "content": "It is sunny.", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert streamed(server.chat(tools=TOOLS, stream=True)) == ("It is sunny.", [], "stop")


def test_n_answers_are_read_one_by_one(server: Speaking) -> None:
    choices = ok(server.chat(tools=TOOLS, n=2))["choices"]
    ids = [call["id"] for choice in choices for call in choice["message"]["tool_calls"]]
    assert len(set(ids)) == 2


def test_none_neither_shows_nor_reads_tools(server: Speaking) -> None:
    (choice,) = ok(server.chat(tools=TOOLS, tool_choice="none"))["choices"]
    assert choice["message"]["content"] == CALL
    assert "tools" not in server.prompted[-1]


def test_required_and_named_are_enforced_by_a_grammar(server: Speaking) -> None:
    ok(server.chat(tools=TOOLS, tool_choice="required"))
    source = json.loads(server.params.structured_outputs.source)  # type: ignore[union-attr]
    assert [tag["begin"].split('"')[3] for tag in source["format"]["tags"]] == ["weather", "time"]
    assert source["format"]["at_least_one"]
    assert not source["format"]["stop_after_first"]
    (choice,) = ok(server.chat(tools=TOOLS, tool_choice=NAMED))["choices"]
    source = json.loads(server.params.structured_outputs.source)  # type: ignore[union-attr]
    assert [tag["begin"].split('"')[3] for tag in source["format"]["tags"]] == ["time"]
    assert source["format"]["stop_after_first"]
    assert choice["finish_reason"] == "stop"  # as OpenAI has it


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
@pytest.mark.parametrize("length", [0, 1, len("<tool_call>\n"), len('<tool_call>\n{"name": "weather')])
def test_a_forced_call_that_is_cut_before_its_name_is_no_content(server: Speaking, choice: Any, length: int) -> None:
    server.text = CALL[:length]
    (answer,) = ok(server.chat(tools=TOOLS, tool_choice=choice))["choices"]
    assert answer["message"] == {"role": "assistant", "content": None, "refusal": None}
    assert streamed(server.chat(tools=TOOLS, tool_choice=choice, stream=True))[:2] == ("", [])
    flat = [{"type": "function", "name": "weather"}]
    body = {"model": "fake", "input": "a", "tools": flat, "tool_choice": "required"}
    whole = ok(server.request("POST", "/v1/responses", json=body))
    assert "".join(part["text"] for item in whole["output"] for part in item["content"]) == ""


def test_allowed_tools_are_those_that_the_model_sees(server: Speaking) -> None:
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}
    ok(server.chat(tools=TOOLS, tool_choice=allowed))
    assert [tool["function"]["name"] for tool in server.prompted[-1]["tools"]] == ["time"]


def test_strict_functions_are_enforced_where_calls_are_optional(server: Speaking) -> None:
    ok(server.chat(tools=[strict(WEATHER), TIME]))
    source = json.loads(server.params.structured_outputs.source)  # type: ignore[union-attr]
    assert source["format"]["triggers"] == ["<tool_call>"]
    ok(server.chat(tools=TOOLS, response_format={"type": "json_object"}))
    source = json.loads(server.params.structured_outputs.source)  # type: ignore[union-attr]
    assert [element["type"] for element in source["format"]["elements"]] == ["tags_with_separator", "json_schema"]


def test_mistral_shows_its_special_token_and_is_forced_in_the_prompt() -> None:
    text = '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Rome"}}]<eos>'
    server = Speaking("mistral", text)
    (choice,) = ok(server.chat(tools=TOOLS))["choices"]
    assert server.params.skip_special_tokens is False
    (call,) = choice["message"]["tool_calls"]
    assert len(call["id"]) == 9
    free = len(server.asked[-1].prompt_token_ids)
    server.text = text.removeprefix("[TOOL_CALLS] ").removesuffix("<eos>")
    (choice,) = ok(server.chat(tools=TOOLS, tool_choice="required"))["choices"]
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "weather"
    assert len(server.asked[-1].prompt_token_ids) == free + 1
    assert server.params.skip_special_tokens
    assert "cannot be enforced" in refused(server.chat(tools=[strict(WEATHER)]))["message"]


def test_calls_and_results_come_back_as_objects(server: Speaking) -> None:
    server.text = "Done."
    reply = {"role": "assistant", "content": None, "tool_calls": [{"id": "call_1", **EXPECTED[0]}]}
    result = {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "sunny"}]}
    ok(server.chat(messages=[*MESSAGES, reply, result], tools=TOOLS))
    _, sent, answer = server.prompted[-1]["messages"]
    assert sent["tool_calls"][0]["function"] == {"name": "weather", "arguments": {"city": "Rome"}}
    assert answer == {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}
    for history in ([result], [result, reply], [reply, {**result, "tool_call_id": "call_2"}]):
        error = refused(server.chat(messages=[*MESSAGES, *history], tools=TOOLS))
        assert error["param"].endswith("].tool_call_id")
        assert "no assistant's message before it" in error["message"]
    wrong = {**reply, "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "[1]"}}]}
    error = refused(server.chat(messages=[*MESSAGES, wrong]))
    assert error["param"] == "messages[1].tool_calls[0].function.arguments"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice.function.name"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": [TIME, TIME]}, "tools[1].function.name"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "no blanks"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "f", "schema": {}}}]}, "tools[0].function.schema"),
        ({"tools": [TIME] * 129}, "tools"),
        ({"tools": TOOLS, "tool_choice": "required", "response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": TOOLS, "guided_regex": "a", "tool_choice": NAMED}, "guided_regex"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"parallel_tool_calls": "yes"}, "parallel_tool_calls"),
    ],
)
def test_what_is_wrong_about_tools_is_named(server: Speaking, fields: dict[str, Any], param: str) -> None:
    assert refused(server.chat(**fields))["param"] == param


def test_a_strict_schema_that_cannot_be_enforced_is_refused_and_another_is_any_object(server: Speaking) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "not": {}}}}
    error = refused(server.chat(tools=[strict(tool)], tool_choice="required"))
    assert error["param"].startswith("tools[0].function.parameters")
    ok(server.chat(tools=[tool], tool_choice="required"))
    source = json.loads(server.params.structured_outputs.source)  # type: ignore[union-attr]
    assert source["format"]["tags"][0]["content"]["json_schema"] == {"type": "object", "additionalProperties": True}


def test_a_model_without_tools_says_so() -> None:
    server = Speaking("none", "hi")
    assert "no tool calls" in refused(server.chat(tools=TOOLS))["message"]
    ok(server.chat(tools=TOOLS, tool_choice="none"))


def test_formats_are_told_from_the_template() -> None:
    assert [tool_format(TEMPLATES[name]) for name in TEMPLATES] == [HERMES, LLAMA3_JSON, MISTRAL]
    for template in ("", "{{ messages }}", "{{ tools }} <tool_call><function=x>", "{{ tools }} [TOOL_CALLS]x[ARGS]"):
        assert tool_format(template) is None
    assert VOCABULARY[0] == "<eos>"
