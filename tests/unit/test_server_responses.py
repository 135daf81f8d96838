"""/v1/responses over a fake engine that says what a test wants; the events are read by the official client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any, get_type_hints

import httpx
import openai
import pytest
from openai.types.responses import ResponseErrorEvent, ResponseFailedEvent, response_create_params
from test_server_api import Server, ok, refused
from test_server_tools import CALL, Speaking

from paceline.sequence import EngineRequest, FinishReason, SequenceDelta
from paceline.server.responses_api.fields import ResponsesRequest

PATH = "/v1/responses"
TOOLS: Any = [
    {"type": "function", "name": "weather", "parameters": {"properties": {"city": {"type": "string"}}}, "strict": None}
]


@pytest.fixture
def server() -> Speaking:
    return Speaking(text="It is sunny.")


def post(server: Server, **fields: Any) -> httpx.Response:
    return server.request("POST", PATH, json={"model": "fake", "input": "hello", **fields})


def with_client(server: Server, use: Any) -> Any:
    """What `use` returns, given the official client, which talks to the application itself."""

    async def run() -> Any:
        transport = httpx.ASGITransport(server.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as inner:
            client = openai.AsyncOpenAI(base_url="http://test/v1", api_key="x", max_retries=0, http_client=inner)
            return await use(client)

    return asyncio.run(run())


def test_text_in_text_out(server: Speaking) -> None:
    answer = with_client(
        server, lambda c: c.responses.create(model="fake", input="hello", instructions="Be kind.", max_output_tokens=9)
    )
    assert (answer.status, answer.output_text, answer.store) == ("completed", "It is sunny.", False)
    assert answer.output[0].id.startswith("msg_")
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    assert [message["role"] for message in server.prompted[-1]["messages"]] == ["system", "user"]
    assert server.params.max_tokens == 9


def test_events_are_those_that_the_client_puts_together(server: Speaking) -> None:
    async def stream(client: openai.AsyncOpenAI) -> tuple[list[Any], Any]:
        async with client.responses.stream(model="fake", input="hello") as events:
            seen = [event async for event in events]
            return seen, await events.get_final_response()

    seen, final = with_client(server, stream)
    kinds = [event.type for event in seen]
    assert kinds[:4] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
    ]  # fmt: skip
    assert kinds[-4:] == [
        "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed",
    ]  # fmt: skip
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    assert "".join(event.delta for event in seen if event.type == "response.output_text.delta") == "It is sunny."
    assert final.output_text == "It is sunny."
    assert final.metrics["speculative_decoding"] is not None


def test_calls_and_their_results(server: Speaking) -> None:
    server.text = f"Let me see. {CALL}"
    answer = with_client(server, lambda c: c.responses.create(model="fake", input="weather?", tools=TOOLS))
    message, call = answer.output
    assert message.content[0].text == "Let me see."
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "weather", {"city": "Rome"})

    async def stream(client: openai.AsyncOpenAI) -> Any:
        async with client.responses.stream(model="fake", input="weather?", tools=TOOLS) as events:
            async for _ in events:
                pass
            return await events.get_final_response()

    streamed = with_client(server, stream)
    assert [item.type for item in streamed.output] == ["message", "function_call"]
    assert streamed.output[1].arguments == call.arguments
    server.text = "Done."
    back = [item.model_dump(exclude_none=True) for item in answer.output]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    ok(post(server, input=[{"role": "user", "content": "weather?"}, *back, result], tools=TOOLS))
    asked, called, told = server.prompted[-1]["messages"]
    assert (asked["role"], called["content"], told["content"]) == ("user", "Let me see.", "sunny")
    assert called["tool_calls"][0]["id"] == told["tool_call_id"]


def test_forced_calls_and_formats_are_enforced(server: Speaking) -> None:
    server.text = CALL
    ok(post(server, tools=TOOLS, tool_choice={"type": "function", "name": "weather"}))
    assert server.params.structured_outputs is not None
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]}
    ok(post(server, tools=TOOLS, tool_choice=allowed))
    assert server.params.structured_outputs is not None
    schema = {"type": "object", "properties": {"a": {"type": "null"}}}
    ok(post(server, text={"format": {"type": "json_schema", "name": "x", "schema": schema, "strict": True}}))
    assert json.loads(server.params.structured_outputs.source)["properties"] == {"a": {"type": "null"}}


def test_an_answer_that_was_cut_is_incomplete() -> None:
    answer = ok(post(Server(), max_output_tokens=3))
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert answer["output"][0]["status"] == "incomplete"
    assert FinishReason.LENGTH == "length"


class Breaking(Speaking):
    """Fails in the middle of an answer."""

    async def generate(self, request: EngineRequest) -> AsyncGenerator[SequenceDelta, None]:
        for text in ("It ", "is "):
            yield SequenceDelta(request_id=request.request_id, index=0, token_ids=[2], text=text)
        yield SequenceDelta(request_id=request.request_id, index=0, finish_reason=FinishReason.ERROR, error="NaN.")


def test_a_stream_that_fails_says_so_in_events_and_raises_in_the_client() -> None:
    server = Breaking()
    *parts, end = post(server, stream=True).text.split("\n\n")
    assert end == ""  # no [DONE]: OpenAI sends none here
    lines = [part.split("\n") for part in parts]
    told = [json.loads(data.removeprefix("data: ")) for _, data in lines]
    assert [name.removeprefix("event: ") for name, _ in lines] == [event["type"] for event in told]
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    error = ResponseErrorEvent.model_validate(told[-2], strict=True)
    assert (error.type, error.code, error.param) == ("error", "generation_failed", None)
    assert "NaN" in error.message
    failed = ResponseFailedEvent.construct(**told[-1]).response  # as the client reads it
    assert failed.id == told[0]["response"]["id"]
    assert (failed.status, failed.output_text, failed.output[0].status) == ("failed", "It is ", "incomplete")
    assert failed.error is not None
    assert (failed.error.code, failed.error.message) == ("server_error", error.message)

    read = ""

    async def listen(client: openai.AsyncOpenAI) -> None:
        nonlocal read
        async for event in await client.responses.create(model="fake", input="hello", stream=True):
            read += getattr(event, "delta", "")

    with pytest.raises(openai.APIError, match="NaN") as raised:
        with_client(server, listen)
    assert (raised.value.code, read) == ("generation_failed", "It is ")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"input": 5}, "'input' is wrong: input should be a valid string or a valid list."),
        ({"input": [{"role": "user", "content": 5}]}, "'input[0].content' is wrong: input should be a valid string or"),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": 5}]}]}, "should be a valid string."),
        ({"tool_choice": 5}, "input should be 'none', 'auto' or 'required' or a valid object."),
    ],
)
def test_what_may_be_one_of_several_kinds_is_told_as_such(fields: dict[str, Any], words: str) -> None:
    assert words in refused(post(Server(), **fields))["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": 3}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0]"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "[]"}]}, "input"),
        ({"input": [{"role": "user", "content": "a", "id": 3}]}, "input[0].id"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "a"}]}, "input[0].call_id"),
        ({"input": "word " * 200}, "input"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"store": True}, "store"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": 101}, "temperature"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"not": {}}}}}, "text.format.schema"),
        ({"tempurature": 1}, "tempurature"),
    ],
)
def test_what_is_wrong_is_named(server: Speaking, fields: dict[str, Any], param: str) -> None:
    assert str(refused(post(server, **fields))["param"]).startswith(param)


def test_every_field_of_openai_is_known(server: Speaking) -> None:
    names = get_type_hints(response_create_params.ResponseCreateParamsNonStreaming).keys()
    known = ResponsesRequest.model_fields.keys() | ResponsesRequest.unsupported.keys()
    assert not names - known, f"honour these or give a reason in server/unsupported.py: {sorted(names - known)}"
    for name in names:
        wrong = ["surely not"] if name == "metadata" else {"surely": ["not"]}
        assert str(refused(post(server, **{name: wrong}))["param"]).startswith(name), name
