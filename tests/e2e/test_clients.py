"""What people have: the official openai client in Python and in Node, and LangChain's OpenAI class.

The weights are random, so texts mean nothing; that calls of tools are well formed is the grammar's doing.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import openai
import pydantic
import pytest
from e2e.api_server import KEY, MAX_MODEL_LEN, MODEL, Api

MESSAGES: Any = [{"role": "user", "content": "What is the weather in Rome?"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["city", "days"],
        },
    },
}
TIME: Any = {"type": "function", "function": {"name": "time"}}
NODE = Path(__file__).resolve().parents[1] / "node"


@pytest.fixture
def client(api: Api) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{api.url}/v1", api_key=KEY, max_retries=0, timeout=60)


def check_call(name: str, arguments: str) -> None:
    found = json.loads(arguments)
    if name == "time":
        assert found == {}
    else:
        assert name == "weather"
        assert found["city"] in ("Rome", "Oslo")
        assert 1 <= found["days"] <= 9


# openai, Python


def test_models_and_errors(api: Api, client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).object == "model"
    for wrong, kind in (
        (lambda: client.with_options(api_key="wrong-key").models.list(), openai.AuthenticationError),
        (lambda: client.chat.completions.create(model="x", messages=MESSAGES), openai.NotFoundError),
        (lambda: client.chat.completions.create(model=MODEL, messages=[]), openai.BadRequestError),
        (lambda: client.completions.create(model=MODEL, prompt="x", max_tokens=10**6, n=9), openai.BadRequestError),
    ):
        with pytest.raises(kind) as caught:
            wrong()  # type: ignore[no-untyped-call]
        assert caught.value.body["message"]  # type: ignore[attr-defined]


def test_named_and_required_tools_are_well_formed_whatever_the_weights(client: openai.OpenAI) -> None:
    for choice, parallel in (({"type": "function", "function": {"name": "weather"}}, True), ("required", False)):
        answer = client.chat.completions.create(
            model=MODEL, messages=MESSAGES, tools=[WEATHER, TIME], tool_choice=choice, seed=1,  # type: ignore[arg-type]
            parallel_tool_calls=parallel, max_tokens=400,
        )  # fmt: skip
        assert answer.choices[0].message.content is None
        (call,) = answer.choices[0].message.tool_calls or []
        check_call(call.function.name, call.function.arguments)  # type: ignore[union-attr]
        assert answer.choices[0].finish_reason == ("stop" if isinstance(choice, dict) else "tool_calls")


def test_a_streamed_call_is_the_whole_one(client: openai.OpenAI) -> None:
    asked: Any = {
        "model": MODEL, "messages": MESSAGES, "tools": [WEATHER, TIME], "tool_choice": "required", "seed": 5,
        "parallel_tool_calls": False, "max_tokens": 400,
    }  # fmt: skip
    whole = client.chat.completions.create(**asked).choices[0].message.tool_calls[0]  # type: ignore[index]
    with client.chat.completions.stream(**asked) as stream:
        for _ in stream:
            pass
        (call,) = stream.get_final_completion().choices[0].message.tool_calls or []
    assert (call.function.name, call.function.arguments) == (whole.function.name, whole.function.arguments)  # type: ignore[union-attr]
    check_call(call.function.name, call.function.arguments)


def test_the_helper_for_pydantic_models(client: openai.OpenAI) -> None:
    class Answer(pydantic.BaseModel):
        yes: bool
        count: int = pydantic.Field(ge=0, le=3)

    parsed = client.chat.completions.parse(model=MODEL, messages=MESSAGES, response_format=Answer, max_tokens=400)
    assert isinstance(parsed.choices[0].message.parsed, Answer)
    tool = openai.pydantic_function_tool(Answer)  # strict
    called = client.chat.completions.parse(
        model=MODEL, messages=MESSAGES, tools=[tool], tool_choice="required", parallel_tool_calls=False, max_tokens=400
    )
    (call,) = called.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, Answer)


def test_a_conversation_with_tool_results(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "max_tokens": 400, "seed": 2, "tools": [WEATHER]}
    first = (
        client.chat.completions.create(messages=MESSAGES, tool_choice="required", parallel_tool_calls=False, **asked)
        .choices[0]
        .message
    )
    calls = first.tool_calls or []
    results = [{"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in calls]
    history = [*MESSAGES, first.model_dump(exclude_none=True), *results]
    answer = client.chat.completions.create(messages=history, tool_choice="none", **asked)
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 400
    assert answer.choices[0].message.tool_calls is None


def test_responses(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}
    form = {"format": {"type": "json_schema", "name": "answer", "schema": schema}}  # so that the answer has an end
    asked: Any = {"model": MODEL, "input": "hello", "max_output_tokens": 400, "text": form, "extra_body": {"seed": 4}}
    whole = client.responses.create(**asked)
    with client.responses.stream(**asked) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_response()
    assert streamed.output_text == whole.output_text
    tool: Any = {"type": "function", "strict": True, **WEATHER["function"]}
    called = client.responses.create(
        model=MODEL, input="weather?", tools=[tool], tool_choice="required", parallel_tool_calls=False
    )
    (call,) = called.output
    assert call.type == "function_call"
    check_call(call.name, call.arguments)


def test_raw_fields_of_ours(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt="a b a b a b", max_tokens=12, temperature=0,
        extra_body={"return_token_ids": True, "priority": 1, "ignore_eos": True},
    )  # fmt: skip
    spec = answer.metrics["speculative_decoding"]  # type: ignore[attr-defined]
    assert sum(spec["acceptance_histogram"]) == spec["num_spec_steps"]
    assert len(spec["acceptance_histogram"]) == spec["num_spec_tokens"] + 1 == 4
    assert len(answer.choices[0].token_ids) == 12  # type: ignore[attr-defined]


def test_tokenize_and_back(api: Api, client: openai.OpenAI) -> None:
    text = "héllo <|im_end|> €"
    body = client.post("../tokenize", body={"prompt": text, "return_token_strs": True}, cast_to=object)
    assert body["max_model_len"] == MAX_MODEL_LEN  # type: ignore[index]
    assert "Ġ" in body["token_strs"]  # type: ignore[index]
    back = client.post("../detokenize", body={"tokens": body["tokens"]}, cast_to=object)  # type: ignore[index]
    assert back == {"prompt": text}
    chat = client.post("../tokenize", body={"messages": MESSAGES, "tools": [WEATHER]}, cast_to=object)
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=[WEATHER], max_tokens=1)
    assert answer.usage is not None
    assert chat["count"] == answer.usage.prompt_tokens  # type: ignore[index]


# LangChain


def test_langchain(api: Api) -> None:
    langchain_openai = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
    chat = langchain_openai.ChatOpenAI(
        model=MODEL, base_url=f"{api.url}/v1", api_key=KEY, max_tokens=40, temperature=0.5, seed=3, max_retries=0
    )
    answer = chat.invoke("hello")
    assert answer.usage_metadata["output_tokens"] <= 40
    chunks = list(chat.stream("hello", stream_usage=True))
    assert "".join(chunk.content for chunk in chunks) == answer.content
    assert sum(chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata) > 0
    bound = chat.bind_tools([WEATHER], tool_choice="weather", parallel_tool_calls=False)
    (call,) = bound.invoke("weather?", max_tokens=400).tool_calls
    check_call(call["name"], json.dumps(call["args"]))

    class Answer(pydantic.BaseModel):
        yes: bool

    for method in ("json_schema", "function_calling"):
        structured = chat.with_structured_output(Answer, method=method)
        assert isinstance(structured.invoke("yes?", max_tokens=400), Answer)


# openai, Node


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
@pytest.mark.skipif(not (NODE / "node_modules" / "openai").is_dir(), reason="run npm install in tests/node")
def test_node(api: Api) -> None:
    done = subprocess.run(
        ["node", "client.mjs"],
        cwd=NODE,
        env=os.environ | {"OPENAI_BASE_URL": f"{api.url}/v1", "OPENAI_API_KEY": KEY, "MODEL": MODEL},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "all passed"
