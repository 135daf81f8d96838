"""The HTTP API over a fake engine: shapes, sums, streams, errors, hanging up."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from server_fakes import MAX_MODEL_LEN, VOCABULARY, FakeClient, FakeTokenizer, fake_config

from paceline.config import EngineConfig, SpeculativeConfig
from paceline.sequence import SequenceDelta
from paceline.server.app import create_app
from paceline.server.unsupported import CHAT, COMPLETION

CHAT_PATH, TEXT_PATH = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "hello there"}]


class CountingTokenizer(FakeTokenizer):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        self.texts.append(text)
        return super().encode(text, add_special_tokens=add_special_tokens)

    def token_table(self) -> dict[str, int]:
        return {"longest": 0, "x": 1}


class Server:
    def __init__(self, config: EngineConfig | None = None) -> None:
        self.engine = FakeClient()
        self.tokenizer = CountingTokenizer()
        self.app = create_app(self.engine, ["fake", "org/alias"], self.tokenizer, config or fake_config())

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return await client.request(method, path, **options)

        return asyncio.run(send())

    def get(self, path: str) -> httpx.Response:
        return self.request("GET", path)

    def chat(self, **fields: Any) -> httpx.Response:
        return self.request("POST", CHAT_PATH, json={"model": "fake", "messages": MESSAGES, **fields})

    def complete(self, **fields: Any) -> httpx.Response:
        return self.request("POST", TEXT_PATH, json={"model": "fake", "prompt": "one two", **fields})


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    assert not made.engine.engine.has_unfinished()


def ok(response: httpx.Response) -> Any:
    assert response.status_code == 200, response.text
    return response.json()


def refused(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The chunks of a stream that ended as it must."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = response.text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


# Answers


def test_chat(server: Server) -> None:
    body = ok(server.chat(max_tokens=5))
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    assert body["model"] == "fake"
    (choice,) = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": " w2 w3 w4 w5 w6", "refusal": None}
    assert (choice["finish_reason"], choice["index"], choice["logprobs"]) == ("length", 0, None)
    assert body["usage"] == {
        "prompt_tokens": 4,
        "completion_tokens": 5,
        "total_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    assert body["metrics"]["speculative_decoding"] == {
        "mean_acceptance_length": 2.0,
        "draft_acceptance_rate": 1.0,
        "acceptance_histogram": [0, 2],
        "num_spec_steps": 2,
        "num_accepted_draft_tokens": 2,
        "num_draft_tokens": 2,
        "num_spec_tokens": 1,
        "num_spec_steps_by_proposer": {"draft": 2, "ngram": 0},
        "num_passes": 3,
    }


def test_without_speculation_its_metrics_are_null() -> None:
    made = Server(dataclasses.replace(fake_config(), speculative=None))
    assert ok(made.chat(max_tokens=1))["metrics"] == {"speculative_decoding": None}


def test_p25_p26_n_answers_and_their_usage(server: Server) -> None:
    body = ok(server.chat(max_tokens=3, n=8))
    assert [choice["index"] for choice in body["choices"]] == list(range(8))
    assert body["usage"]["completion_tokens"] == 24


@pytest.mark.parametrize(
    ("prompt", "count", "tokens"),
    [("a b", 1, 3), (["a", "b c"], 2, 5), ([4, 5, 6], 1, 3), ([[4], [5, 6]], 2, 3)],
)
def test_every_form_of_prompt(server: Server, prompt: Any, count: int, tokens: int) -> None:
    body = ok(server.complete(prompt=prompt, max_tokens=2, n=2))
    assert body["object"] == "text_completion"
    assert [(c["index"], c["text"], c["finish_reason"]) for c in body["choices"]] == [
        (index, " w2 w3", "length") for index in range(2 * count)
    ]
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (tokens, 4 * count)


def test_completions_default_to_16_tokens_and_chat_to_what_fits(server: Server) -> None:
    assert ok(server.complete())["usage"]["completion_tokens"] == 16
    seen = []
    add = server.engine.engine.add_request
    server.engine.engine.add_request = lambda request: (seen.append(request.sampling_params), add(request))  # type: ignore[method-assign,assignment,func-returns-value]
    server.chat()
    assert seen[0].max_tokens is None


def test_every_sampling_field_reaches_the_engine(server: Server) -> None:
    seen = []
    add = server.engine.engine.add_request
    server.engine.engine.add_request = lambda request: (seen.append(request.sampling_params), add(request))  # type: ignore[method-assign,assignment,func-returns-value]
    fields = {
        "n": 2, "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "seed": 11, "stop": ["x"], "max_tokens": 9,
        "stop_token_ids": [3], "include_stop_str_in_output": True, "ignore_eos": True, "min_tokens": 1,
        "logit_bias": {"5": -2}, "allowed_token_ids": [2, 3], "skip_special_tokens": False,
        "frequency_penalty": 0.5, "presence_penalty": -1.5, "repetition_penalty": 1.2, "bad_words": ["no"],
        "prompt_logprobs": 1,
    }  # fmt: skip
    server.chat(**fields, logprobs=True, top_logprobs=2)
    server.complete(**fields, logprobs=2)
    for params in seen:
        for name, value in fields.items():
            assert getattr(params, name) == ({5: -2.0} if name == "logit_bias" else value)
        assert params.logprobs == 2
    server.chat(max_completion_tokens=3)
    assert seen[-1].max_tokens == 3


def test_logprobs_of_chat(server: Server) -> None:
    (choice,) = ok(server.chat(max_tokens=2, logprobs=True, top_logprobs=2))["choices"]
    first = choice["logprobs"]["content"][0]
    assert (first["token"], first["logprob"], first["bytes"]) == (" w2", -0.5, [32, 119, 50])
    assert [top["token"] for top in first["top_logprobs"]] == [" w2", " w3"]
    (plain,) = ok(server.chat(max_tokens=2, logprobs=True))["choices"]
    assert plain["logprobs"]["content"][0]["top_logprobs"] == []


def test_logprobs_of_completions(server: Server) -> None:
    (choice,) = ok(server.complete(max_tokens=3, logprobs=1))["choices"]
    assert choice["logprobs"] == {
        "tokens": [" w2", " w3", " w4"],
        "token_logprobs": [-0.5, -0.5, -0.5],
        "top_logprobs": [{" w2": -0.5}, {" w3": -0.5}, {" w4": -0.5}],
        "text_offset": [0, 3, 6],
    }
    chunks = events(server.complete(max_tokens=3, logprobs=1, stream=True))
    offsets = [offset for chunk in chunks for offset in chunk["choices"][0]["logprobs"]["text_offset"]]
    assert offsets == [0, 3, 6]


def test_prompt_logprobs(server: Server) -> None:
    """The prompt of the chat is <bos>, two words and the token that opens the answer."""
    expected = [
        None,
        *({str(i): {"logprob": -0.25, "rank": 1, "decoded_token": VOCABULARY[i]}} for i in prompt_ids(server)[1:]),
    ]
    assert ok(server.chat(max_tokens=1, prompt_logprobs=1))["prompt_logprobs"] == expected
    (choice,) = ok(server.complete(prompt=prompt_ids(server), max_tokens=1, prompt_logprobs=1))["choices"]
    assert choice["prompt_logprobs"] == expected


def prompt_ids(server: Server) -> list[int]:
    return server.tokenizer.apply_chat_template(MESSAGES)


def test_echo(server: Server) -> None:
    (choice,) = ok(server.complete(prompt="a b", max_tokens=2, echo=True))["choices"]
    assert (choice["text"], choice["logprobs"]) == ("a b w2 w3", None)
    choices = ok(server.complete(prompt=["a", "b c"], max_tokens=1, n=2, echo=True))["choices"]
    assert [choice["text"] for choice in choices] == ["a w2", "a w2", "b c w2", "b c w2"]
    (choice,) = ok(server.complete(prompt=[1, 7, 8], max_tokens=2, echo=True, logprobs=1))["choices"]
    assert choice["text"] == "<bos> w7 w8 w2 w3"
    assert choice["logprobs"]["tokens"] == ["<bos>", " w7", " w8", " w2", " w3"]
    assert choice["logprobs"]["token_logprobs"] == [None, -0.25, -0.25, -0.5, -0.5]
    assert choice["logprobs"]["top_logprobs"] == [None, {" w7": -0.25}, {" w8": -0.25}, {" w2": -0.5}, {" w3": -0.5}]
    assert choice["logprobs"]["text_offset"] == [0, 5, 8, 11, 14]


def test_echo_of_the_prompt_alone(server: Server) -> None:
    body = ok(server.complete(prompt=[1, 7], max_tokens=0, echo=True, logprobs=0))
    (choice,) = body["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("<bos> w7", "length")
    assert choice["logprobs"]["token_logprobs"] == [None, -0.25]
    assert body["usage"]["completion_tokens"] == 0
    assert refused(server.complete(max_tokens=0))["param"] == "max_tokens"
    assert refused(server.chat(echo=True))["param"] == "echo"


def test_echo_in_a_stream(server: Server) -> None:
    chunks = events(server.complete(prompt=[1, 7], max_tokens=3, n=2, echo=True, logprobs=0, stream=True))
    for index in range(2):
        choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert "".join(choice["text"] for choice in choices) == "<bos> w7 w2 w3 w4"
        offsets = [offset for choice in choices for offset in choice["logprobs"]["text_offset"]]
        assert offsets == [0, 5, 8, 11, 14]


def test_synthetic_acceptance_is_said_in_every_response() -> None:
    made = Server(synthetic_config())
    made.engine.engine.counts.speculation.synthetic = True
    advance = made.engine.engine._advance
    made.engine.engine._advance = lambda *args: marked_synthetic(advance(*args))  # type: ignore[method-assign]
    for response in (made.chat(max_tokens=2), made.chat(max_tokens=2, stream=True), made.get("/v1/models")):
        assert "not the model's" in response.headers["x-paceline-acceptance"]
    assert ok(made.complete(max_tokens=2))["metrics"]["speculative_decoding"]["synthetic_acceptance"] is True
    assert 'spec_decode_synthetic_acceptance{model_name="fake"} 1.0' in made.get("/metrics").text
    honest = Server()
    assert "x-paceline-acceptance" not in honest.chat(max_tokens=2).headers
    assert "synthetic_acceptance" not in ok(honest.complete(max_tokens=2))["metrics"]["speculative_decoding"]
    assert 'spec_decode_synthetic_acceptance{model_name="fake"} 0.0' in honest.get("/metrics").text


def synthetic_config() -> EngineConfig:
    speculative = SpeculativeConfig(method="ngram", acceptance="synthetic", synthetic_acceptance_rates=(0.8,))
    return dataclasses.replace(fake_config(), speculative=speculative)


def marked_synthetic(delta: SequenceDelta) -> SequenceDelta:
    if delta.speculation is not None:
        delta.speculation.synthetic = True
    return delta


# Streams


def test_chat_stream(server: Server) -> None:
    chunks = events(server.chat(max_tokens=5, stream=True))
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == " w2 w3 w4 w5 w6"
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None, None, None, "length"]
    assert all("usage" not in chunk for chunk in chunks)


def test_p26_usage_of_a_stream_is_the_usage_of_the_answer(server: Server) -> None:
    whole = ok(server.chat(max_tokens=7, n=2))
    chunks = events(server.chat(max_tokens=7, n=2, stream=True, stream_options={"include_usage": True}))
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == whole["usage"]
    assert chunks[-1]["metrics"] == whole["metrics"]


@pytest.mark.parametrize("path", [CHAT_PATH, TEXT_PATH])
def test_p26_p40_usage_in_every_chunk_counts_the_tokens_so_far(server: Server, path: str) -> None:
    ask = server.chat if path == CHAT_PATH else server.complete
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = events(ask(max_tokens=7, stream=True, stream_options=options, return_token_ids=True))
    sent = 0
    for chunk in chunks[:-1]:
        if chunk["choices"][0].get("token_ids") is not None:
            sent += len(chunk["choices"][0]["token_ids"])
            assert chunk["usage"]["completion_tokens"] == sent
    assert chunks[-1]["usage"]["completion_tokens"] == sent == 7
    error = refused(ask(stream=True, stream_options={"continuous_usage_stats": True}))
    assert error["param"] == "stream_options.continuous_usage_stats"


def test_token_ids_of_prompt_and_answer(server: Server) -> None:
    whole = ok(server.chat(max_tokens=3, return_token_ids=True))
    assert (whole["prompt_token_ids"], whole["choices"][0]["token_ids"]) == (prompt_ids(server), [2, 3, 4])
    chunks = events(server.chat(max_tokens=3, return_token_ids=True, stream=True))
    assert chunks[0]["prompt_token_ids"] == prompt_ids(server)
    assert [t for chunk in chunks for t in chunk["choices"][0].get("token_ids", [])] == [2, 3, 4]
    choices = ok(server.complete(prompt=[[7], [8, 9]], max_tokens=1, return_token_ids=True))["choices"]
    assert [(c["prompt_token_ids"], c["token_ids"]) for c in choices] == [([7], [2]), ([8, 9], [2])]
    chunks = events(server.complete(prompt=[[7]], max_tokens=3, return_token_ids=True, stream=True))
    assert [c["choices"][0].get("prompt_token_ids") for c in chunks] == [[7], None]
    assert "token_ids" not in ok(server.chat(max_tokens=1))["choices"][0]


@pytest.mark.parametrize("path", ["chat", "complete"])
def test_origins_of_tokens_are_streamed_where_they_are_asked_for(server: Server, path: str) -> None:
    ask = getattr(server, path)
    options = {"include_token_origins": True, "include_usage": True}
    chunks = events(ask(max_tokens=5, n=2, stream=True, stream_options=options, return_token_ids=True))
    for index in (0, 1):
        choices = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index and "paceline" in c]
        assert [c["paceline"]["origins"] for c in choices] == [["accepted", "bonus"], ["accepted", "bonus"], ["plain"]]
        assert [c["paceline"]["num_drafted"] for c in choices] == [1, 1, 0]
        for choice in choices:
            told = choice["paceline"]["texts"]
            assert "".join(told) == (choice["delta"]["content"] if path == "chat" else choice["text"])
            assert len(told) == len(choice["token_ids"])
    assert not any("paceline" in c for c in events(ask(max_tokens=5, stream=True))[-1]["choices"])
    assert server.engine.wanted_steps == [True, False]  # a chunk with origins is one pass, also for a slow reader
    error = refused(ask(max_tokens=5, stream_options={"include_token_origins": True}))
    assert (error["param"], "stream=true" in error["message"]) == ("stream_options", True)
    error = refused(ask(stream=True, stream_options={"include_token_origins": 1}))
    assert error["param"] == "stream_options.include_token_origins"


def test_completion_stream_of_several_prompts(server: Server) -> None:
    chunks = events(server.complete(prompt=["a", "b"], n=2, max_tokens=4, stream=True))
    texts = [""] * 4
    for chunk in chunks:
        choice = chunk["choices"][0]
        texts[choice["index"]] += choice["text"]
    assert texts == [" w2 w3 w4 w5"] * 4


# Refusals (p28, p44)


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"temperature": -1}, "temperature", "between 0 and 100"),
        ({"temperature": "0.7"}, "temperature", "valid number"),
        ({"temperature": True}, "temperature", "valid number"),
        ({"top_p": 0}, "top_p", "above 0"),
        ({"n": 0}, "n", "between 1 and 128"),
        ({"n": 2**70}, "n", "less than"),
        ({"max_tokens": 0}, "max_tokens", "positive"),
        ({"seed": 2**70}, "seed", "64 bits"),
        ({"stop": [""]}, "stop", "non-empty"),
        ({"stop": 3}, "stop", "string"),
        ({"min_p": 2}, "min_p", "between 0 and 1"),
        ({"frequency_penalty": 2.5}, "frequency_penalty", "between -2 and 2"),
        ({"presence_penalty": "1"}, "presence_penalty", "valid number"),
        ({"repetition_penalty": 0}, "repetition_penalty", "between 0.001 and 1000"),
        ({"bad_words": [" "]}, "bad_words", "more than spaces"),
        ({"prompt_logprobs": 21}, "prompt_logprobs", "max_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "cannot be streamed"),
        ({"rejection_sample_method": "synthetic"}, "rejection_sample_method", "Unknown field"),
        ({"bad_words": ["x"] * 1001}, "bad_words", "at most 1000"),
        ({"bad_words": ["x" * 30_000] * 1000}, "bad_words", "at most 256"),
        ({"stop_token_ids": [3] * 1025}, "stop_token_ids", "at most 1024"),
        ({"logit_bias": {str(i): 1 for i in range(4097)}}, "logit_bias", "at most 4096"),
        ({"logits_processors": ["f"]}, "logits_processors", "not supported"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "its keys are token ids as decimal strings"),
        ({"logit_bias": {"5": 500}}, "logit_bias", "-100"),
        ({"min_tokens": 9, "max_tokens": 3}, "min_tokens", "at most max_tokens"),
        ({"stop_token_ids": [2**40]}, "stop_token_ids", "less than"),
        ({"speculation": {"k": 3}}, "speculation.k", "Unknown field"),
        ({"speculation": {"num_speculative_tokens": -1}}, "speculation.num_speculative_tokens", "at least 0"),
        ({"stream": "yes"}, "stream", "boolean"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream=true"),
        ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage", "Unknown field"),
        ({"temprature": 1}, "temprature", "Did you mean 'temperature'"),
        ({"model": 5}, "model", "valid string"),
    ],
)
@pytest.mark.parametrize("path", [CHAT_PATH, TEXT_PATH])
def test_p28_wrong_fields_are_refused_by_name(
    server: Server, path: str, fields: dict[str, Any], param: str, words: str
) -> None:
    error = refused(server.chat(**fields) if path == CHAT_PATH else server.complete(**fields))
    assert error["param"] == param or error["param"].startswith(f"{param}[") or error["param"].startswith(f"{param}.")
    assert words in error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "user"}, {"role": "wizard", "content": "x"}]}, "messages[1].role"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": "x", "name": "y"}]}, "messages[0].name"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"chat_template_kwargs": {"tokenize": False}}, "chat_template_kwargs"),
    ],
)
def test_wrong_chats_are_refused_by_name(server: Server, fields: dict[str, Any], param: str) -> None:
    assert refused(server.chat(**fields))["param"] == param


@pytest.mark.parametrize("prompt", [[], [[]], [[4], []], [1] * MAX_MODEL_LEN, ["ok", [1]], [1.5], None, [-1], [2**80]])
@pytest.mark.parametrize("stream", [False, True])
def test_p44_wrong_prompts(server: Server, prompt: Any, stream: bool) -> None:
    assert refused(server.complete(prompt=prompt, stream=stream))["param"].startswith("prompt")


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ([-1], "prompt[0]"),
        ([1.5], "prompt[0]"),
        ([True], "prompt[0]"),
        (5, "prompt"),
        (None, "prompt"),
        ({"a": 1}, "prompt"),
        (["a", 3], "prompt[1]"),
        ([3, "a"], "prompt[1]"),
        ([[3], [4, True]], "prompt[1][1]"),
        ([[3], "a"], "prompt[1]"),
        ([[[3]]], "prompt[0][0]"),
        ([2**31], "prompt[0]"),
    ],
)
def test_a_wrong_prompt_is_told_what_is_expected(server: Server, prompt: Any, param: str) -> None:
    error = refused(server.complete(prompt=prompt))
    assert "a string, a list of strings, a list of token ids or a list of lists of token ids" in error["message"]
    assert error["param"] == param


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("prompt", "param", "words"),
    [
        (["a", "b", ""], "prompt[2]", "prompt[2]: The prompt is empty"),
        (["a", "b " * MAX_MODEL_LEN, "c"], "prompt[1]", "prompt[1]: The prompt is too long"),
        (["a", "x" * 10_000], "prompt[1]", "prompt[1]: The prompt has 10000 characters"),
        ([[3], []], "prompt[1]", "prompt[1]: The prompt is empty"),
        ([""], "prompt", "The prompt is empty"),
        ([[3]] * 2049, "prompt", "2049 prompts; at most 2048"),
    ],
)
def test_which_of_several_prompts_is_wrong(prompt: Any, param: str, words: str, stream: bool) -> None:
    server = Server()
    server.tokenizer.encode = _bare_encode  # type: ignore[method-assign]
    error = refused(server.complete(prompt=prompt, stream=stream))
    assert words in error["message"]
    assert error["param"] == param


def _bare_encode(text: str, *, add_special_tokens: bool = True) -> list[int]:
    return FakeTokenizer().encode(text, add_special_tokens=False)


@pytest.mark.parametrize("name", ["x" * 3_000_000, "é" * 100])
def test_an_error_quotes_the_beginning_of_a_name_alone(server: Server, name: str) -> None:
    unknown = refused(server.chat(model=name), 404)
    assert unknown["code"] == "model_not_found"
    field = refused(server.chat(**{name: 1}))
    assert field["code"] == "unknown_parameter"
    for error in (unknown, field):
        assert name[:80] in error["message"]
        assert name[:81] not in error["message"]


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"name": "y"}, "messages[1].name", "'name' is not supported"),
        ({"tool_call_id": "c"}, "messages[1].tool_call_id", "only a message of role 'tool'"),
        ({"role": "tool"}, "messages[1].tool_call_id", "needs its 'tool_call_id'"),
        ({"role": "tool", "tool_call_id": "c"}, "messages[1]", "has no tool calls"),
        ({"role": "function", "name": "f"}, "messages[1].role", "use 'tool'"),
        ({"role": "wizard"}, "messages[1].role", "'system', 'developer', 'user', 'assistant' or 'tool'."),
        ({"nam": "y"}, "messages[1].nam", "Unknown field"),
    ],
)
def test_what_messages_cannot_have_yet(server: Server, fields: dict[str, Any], param: str, words: str) -> None:
    error = refused(server.chat(messages=[*MESSAGES, {"role": "user", "content": "x", **fields}]))
    assert (error["param"], words in error["message"]) == (param, True), error


def test_a_message_without_a_name_may_say_so(server: Server) -> None:
    ok(server.chat(messages=[{**MESSAGES[0], "name": None, "tool_call_id": None}], max_tokens=1))


def test_a_request_has_at_most_2048_sequences(server: Server) -> None:
    ok(server.complete(prompt=["a"] * 16, n=128, max_tokens=1))
    server.tokenizer.texts.clear()
    for fields in ({"prompt": ["a"] * 17, "n": 128}, {"prompt": ["Hi"] * 200_000}, {"prompt": [[3]] * 2049}):
        error = refused(server.complete(**fields))
        assert error["param"] == "prompt"
        assert "at most 2048" in error["message"]
    assert server.tokenizer.texts == []


def test_a_text_that_cannot_fit_is_not_tokenised(server: Server) -> None:
    text = "x" * (MAX_MODEL_LEN * len("longest") + 1)
    for response, param in (
        (server.complete(prompt=text), "prompt"),
        (server.complete(prompt=[text], stream=True), "prompt"),
        (server.chat(messages=[{"role": "user", "content": text[:-9]}, *MESSAGES]), "messages"),
    ):
        error = refused(response)
        assert (error["param"], error["code"]) == (param, "context_length_exceeded")
    assert server.tokenizer.texts == []
    ok(server.complete(prompt=text[1:], max_tokens=1))


def test_a_body_over_32_mib_is_413(server: Server) -> None:
    error = refused(server.complete(prompt="x" * 32 * 2**20), 413)
    assert (error["code"], "32 MiB" in error["message"]) == ("request_too_large", True)


def test_the_prompts_of_a_client_that_is_gone_are_not_tokenised(server: Server) -> None:
    encode = server.tokenizer.encode
    server.tokenizer.encode = lambda *args, **kw: (time.sleep(0.05), encode(*args, **kw))[1]  # type: ignore[method-assign,func-returns-value]
    body = json.dumps({"model": "fake", "prompt": ["a"] * 100}).encode()
    hang_up(server, body, lambda: len(server.tokenizer.texts) > 1)
    time.sleep(0.2)
    assert len(server.tokenizer.texts) < 5


def test_p44_an_overlong_chat_names_the_messages_and_the_code(server: Server) -> None:
    error = refused(server.chat(messages=[{"role": "user", "content": "word " * 100}], stream=True))
    assert (error["param"], error["code"]) == ("messages", "context_length_exceeded")


@pytest.mark.parametrize(("path", "table"), [(CHAT_PATH, CHAT), (TEXT_PATH, COMPLETION)])
def test_fields_of_openai_that_are_not_offered(server: Server, path: str, table: dict[str, Any]) -> None:
    ask = server.chat if path == CHAT_PATH else server.complete
    for name, foreign in table.items():
        for value in foreign.harmless:
            ok(ask(**{name: value, "max_tokens": 1}))
        error = refused(ask(**{name: "surely not"}))
        assert error["param"] == name
        assert name in error["message"]


def test_who_asks_is_accepted(server: Server) -> None:
    ok(server.chat(user="u-1", safety_identifier="s", prompt_cache_key="k", max_tokens=1))


def test_messages_that_a_client_sends_back_are_accepted(server: Server) -> None:
    reply = ok(server.chat(max_tokens=2))["choices"][0]["message"]
    parts = {"role": "developer", "content": [{"type": "text", "text": "be kind"}]}
    ok(server.chat(messages=[parts, *MESSAGES, reply, *MESSAGES], max_tokens=2))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "not valid JSON"),
        (b'{"model": "fake"', "not valid JSON"),
        (b"[]", "JSON object"),
        (b'"x"', "JSON object"),
        (b"", "JSON object"),
        (b"\xff\xfe", ""),
        (b"[" * 100_000, ""),
        (b'{"model": "fake", "prompt": "a", "temperature": NaN}', "temperature"),
        (b'{"model": "fake", "prompt": "\\ud800"}', "prompt"),
        (b'{"model": "fake", "prompt": ' + b"[" * 900 + b"]" * 900 + b"}", "a list"),
        (b"{}", "model"),
    ],
)
def test_p44_malformed_bodies(server: Server, content: bytes, words: str) -> None:
    headers = {"content-type": "application/json"}
    error = refused(server.request("POST", TEXT_PATH, content=content, headers=headers))
    assert words in error["message"]


def test_a_body_of_another_type_says_what_to_send(server: Server) -> None:
    headers = {"content-type": "application/x-www-form-urlencoded"}
    error = refused(server.request("POST", TEXT_PATH, content=b'{"model": "fake"}', headers=headers))
    assert "Content-Type: application/json" in error["message"]


def test_p44_unknown_model_path_and_method(server: Server) -> None:
    error = refused(server.chat(model="fakee"), 404)
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert "Did you mean 'fake'?" in error["message"]
    refused(server.get("/v1/nothing"), 404)
    refused(server.get("/v1/models/nobody"), 404)
    response = server.get(CHAT_PATH)
    refused(response, 405)
    assert response.headers["allow"] == "POST"


# Faults of the engine


def test_a_failed_generation_is_an_error_and_not_an_answer(server: Server) -> None:
    error = refused(server.complete(prompt=[99]), 500)
    assert (error["code"], "NaN" in error["message"]) == ("generation_failed", True)


@pytest.mark.parametrize("stream", [False, True])
def test_p42_a_dead_engine_is_503(server: Server, stream: bool) -> None:
    server.engine.dies_after = 0
    assert refused(server.chat(stream=stream), 503)["code"] == "engine_dead"
    assert refused(server.complete(prompt=["a", "b"], stream=stream), 503)["code"] == "engine_dead"
    server.engine.is_healthy = False
    for path in ("/health", "/health/ready", "/health/live"):
        assert server.request("HEAD", path).status_code == 503
    for path in ("/health", "/health/ready", "/health/live"):
        assert refused(server.get(path), 503)["code"] == "engine_dead"
    assert 'paceline:engine_up{model_name="fake"} 0.0' in server.get("/metrics").text
    assert ok(server.get("/v1/paceline/status"))["state"] == "unhealthy"


def test_p42_a_stalled_engine_is_503_that_says_what_for_how_long_and_what_to_do(server: Server) -> None:
    server.engine.is_healthy, server.engine.stalled_seconds = False, 75.4
    for path in ("/health", "/health/ready", "/health/live"):
        error = refused(server.get(path), 503)
        assert error["code"] == "engine_stalled"
        for words in ("alive", "no step for 75 s", "restart the server", "--stall-after"):
            assert words in error["message"]


def test_an_engine_that_dies_in_a_stream_ends_it_with_an_error_event(server: Server) -> None:
    server.engine.dies_after = 3
    last = events(server.chat(stream=True, max_tokens=50))[-1]
    assert last["error"]["code"] == "engine_dead"
    assert server.engine.engine.requests == {}


# Status


def test_health_models_version(server: Server) -> None:
    for path in ("/health", "/health/ready", "/health/live"):
        assert ok(server.get(path)) == {"status": "ok"}
    for path in ("/health", "/health/ready", "/health/live", "/v1/models", "/v1/models/fake", "/metrics", "/version",
                 "/v1/paceline/status"):  # fmt: skip
        assert server.request("HEAD", path).status_code == server.get(path).status_code == 200
        assert not any("head" in item for item in ok(server.get("/openapi.json"))["paths"].values())
    assert server.request("HEAD", "/v1/models/none").status_code == 404
    models = ok(server.get("/v1/models"))
    assert [model["id"] for model in models["data"]] == ["fake", "org/alias"]
    assert ok(server.get("/v1/models/org/alias"))["object"] == "model"
    assert ok(server.get("/version"))["version"]
    assert ok(server.chat(model="org/alias", max_tokens=1))["model"] == "org/alias"


def test_metrics(server: Server) -> None:
    ok(server.chat(max_tokens=6))
    text = server.get("/metrics").text
    for line in (
        'paceline:spec_decode_num_drafts_total{model_name="fake"} 3.0',
        'paceline:spec_decode_num_draft_tokens_total{model_name="fake"} 3.0',
        'paceline:spec_decode_num_accepted_tokens_total{model_name="fake"} 3.0',
        'paceline:spec_decode_num_accepted_tokens_per_pos_total{model_name="fake",position="0"} 3.0',
        'paceline:num_requests_running{model_name="fake"} 0.0',
        'paceline:num_requests_waiting{model_name="fake"} 0.0',
        'paceline:kv_cache_usage_perc{model_name="fake"} 0.0',
        'paceline:prompt_tokens_total{model_name="fake"} 4.0',
        'paceline:generation_tokens_total{model_name="fake"} 6.0',
        'paceline:prefix_cache_queries_total{model_name="fake"} 0.0',
    ):
        assert line in text.splitlines()


def test_the_openapi_document_is_there(server: Server) -> None:
    assert CHAT_PATH in ok(server.get("/openapi.json"))["paths"]


# Hanging up


@pytest.mark.parametrize("stream", [False, True])
def test_p43_a_client_that_hangs_up_aborts_its_requests(server: Server, stream: bool) -> None:
    body = json.dumps({"model": "fake", "prompt": ["a", "b"], "max_tokens": 10**6, "stream": stream}).encode()
    sent = hang_up(server, body, lambda: server.engine.engine.counts.generation_tokens > 20)
    assert server.engine.engine.counts.finished_abort == 2
    assert not any(m["type"] == "http.response.body" and not m.get("more_body") and stream for m in sent)


def hang_up(server: Server, body: bytes, when: Callable[[], bool]) -> list[Any]:
    """Send a request whose client is gone as soon as `when`; what was sent to it."""
    sent: list[Any] = []

    async def run() -> None:
        calls = 0

        async def receive() -> dict[str, Any]:
            nonlocal calls
            calls += 1
            if calls == 1:
                return {"type": "http.request", "body": body, "more_body": False}
            while not when():
                await asyncio.sleep(0)
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "path": TEXT_PATH,
            "raw_path": TEXT_PATH.encode(), "query_string": b"", "headers": headers, "server": ("t", 80),
            "client": ("t", 1), "scheme": "http", "root_path": "",
        }  # fmt: skip
        await asyncio.wait_for(server.app(scope, receive, send), 10)

    asyncio.run(run())
    return sent


_LONE = "\ud800"  # half of a surrogate pair: "\ud800" is valid JSON and no text contains it


@pytest.mark.parametrize(
    "fields",
    [
        {"stop": _LONE}, {"stop": ["a", _LONE]}, {"bad_words": [_LONE]}, {"model": _LONE}, {"user": _LONE},
        {"structured_outputs": {_LONE: 1}}, {"guided_regex": _LONE}, {"logit_bias": {_LONE: 1}}, {_LONE: 1},
        {"prompt": _LONE}, {"messages": [{"role": "user", "content": _LONE}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": _LONE}]}]},
        {"messages": [{"role": _LONE, "content": "a"}]}, {"chat_template_kwargs": {_LONE: 1}},
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", [CHAT_PATH, TEXT_PATH])
def test_p44_half_a_character_is_refused_in_every_field(server: Server, path: str, fields: dict[str, Any]) -> None:
    start = {"messages": [{"role": "user", "content": "a"}]} if path == CHAT_PATH else {"prompt": "a"}
    body = json.dumps({"model": "fake", **start, **fields})  # escapes what UTF-8 cannot hold
    response = server.request("POST", path, content=body, headers={"content-type": "application/json"})
    assert response.status_code in (400, 404), response.text
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("content", [b'{"prompt": "\xff"}', b"[" * 5000 + b"]" * 5000, b'{"n": ' + b"9" * 5000 + b"}"])
def test_p44_bodies_that_cannot_be_read_say_so(server: Server, content: bytes) -> None:
    response = server.request("POST", TEXT_PATH, content=content, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_json"


@pytest.mark.parametrize(
    "name", ["messages", "self", "conversation", "add_generation_prompt", "continue_final_message"]
)
def test_template_arguments_that_are_no_variables_are_refused(server: Server, name: str) -> None:
    assert refused(server.chat(chat_template_kwargs={name: []}))["param"] == "chat_template_kwargs"


def test_a_flag_about_json_is_refused_beside_a_regex(server: Server) -> None:
    error = refused(server.complete(structured_outputs={"regex": "a", "disable_any_whitespace": True}))
    assert "disable_any_whitespace" in error["message"]
