"""A grammar beside the other parameters of a request: ends, stops, lengths, and what leaves nothing to say."""

from __future__ import annotations

from typing import Any

import pytest
from structured.byte_tokens import byte_tokenizer, eos_id
from structured.engines import generate, make_llm

from paceline import LLM, SamplingParams
from paceline.outputs import CompletionOutput

TURN = byte_tokenizer().token_table()["<|turn|>"]
A, B = byte_tokenizer().encode("a")[0], byte_tokenizer().encode("b")[0]


@pytest.fixture(scope="module", params=["plain", "draft model", "ngram"])
def llm(request: pytest.FixtureRequest) -> LLM:
    return make_llm(request.param)


def answer(llm: LLM, regex: str, **fields: Any) -> CompletionOutput:
    params = {"temperature": 0.0, "max_tokens": 30, **fields}
    return generate(llm, [SamplingParams(**params, structured_outputs={"regex": regex})])[0].outputs[0]


def test_p22_an_answer_ends_where_its_grammar_does(llm: LLM) -> None:
    ended = answer(llm, "(abc){3}")
    assert (ended.text, ended.finish_reason, ended.stop_reason) == ("abcabcabc", "stop", None)
    assert ended.token_ids[-1] == eos_id()
    assert list(ended.token_ids).count(eos_id()) == 1


def test_max_tokens_cuts(llm: LLM) -> None:
    cut = answer(llm, "b{20}", max_tokens=7)
    assert (cut.text, cut.finish_reason) == ("bbbbbbb", "length")


def test_min_tokens_holds_the_end_back_while_there_is_something_to_say(llm: LLM) -> None:
    eager = {"logit_bias": {eos_id(): 100.0}}
    assert answer(llm, "b*", **eager).text == ""
    held = answer(llm, "b*", min_tokens=9, **eager)
    assert (held.text, held.finish_reason, len(held.token_ids)) == ("b" * 9, "stop", 10)


def test_the_grammars_end_comes_before_min_tokens(llm: LLM) -> None:
    short = answer(llm, "b{4}", min_tokens=20)
    assert (short.text, short.finish_reason) == ("bbbb", "stop")
    assert list(short.token_ids) == [B] * 4 + [eos_id()]


def test_a_stop_string_ends_an_answer_anywhere(llm: LLM) -> None:
    stopped = answer(llm, "(ab!){6}", stop=["!ab!"])
    assert (stopped.text, stopped.finish_reason, stopped.stop_reason) == ("ab", "stop", "!ab!")


def test_a_stop_token_that_is_text_ends_an_answer_where_the_grammar_has_it(llm: LLM) -> None:
    stopped = answer(llm, "b{3}ab{3}", stop_token_ids=[A], allowed_token_ids=[A, B, eos_id()])
    assert list(stopped.token_ids) == [B, B, B, A]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", A)


def test_a_stop_token_that_is_no_text_is_an_end_of_the_grammar(llm: LLM) -> None:
    stopped = answer(llm, "b{3}", stop_token_ids=[TURN], logit_bias={TURN: 100.0})
    assert list(stopped.token_ids) == [B, B, B, TURN]
    assert (stopped.text, stopped.finish_reason, stopped.stop_reason) == ("bbb", "stop", TURN)


def test_p31_where_nothing_is_left_the_request_fails_alone(llm: LLM) -> None:
    params = [
        SamplingParams(temperature=1.0, max_tokens=9, structured_outputs={"regex": "b+a"}, allowed_token_ids=[A]),
        SamplingParams(temperature=0.0, max_tokens=9, structured_outputs={"regex": "bbb"}),
    ]
    failed, fine = (output.outputs[0] for output in generate(llm, params))
    assert failed.finish_reason == "error"
    assert fine.text == "bbb"


def test_p24_one_token_at_most(llm: LLM) -> None:
    assert answer(llm, "b+", max_tokens=1).text == "b"


def test_logprobs_are_the_models_own(llm: LLM) -> None:
    forced = answer(llm, "b{3}", logprobs=2)
    assert forced.logprobs is not None
    free = generate(llm, [SamplingParams(temperature=0, max_tokens=1, logprobs=2)])[0].outputs[0]
    assert free.logprobs is not None
    best = max(free.logprobs[0].values(), key=lambda entry: entry.logprob)
    assert best in forced.logprobs[0].values()  # the model's favourite is shown although the grammar forbids it


def test_compact_json_is_on_one_line(llm: LLM) -> None:
    schema = {"type": "object", "properties": {"a": {"const": [1, 2]}, "b": {"const": None}}, "required": ["a", "b"]}
    outputs = {"json": schema, "disable_any_whitespace": True}
    params = SamplingParams(temperature=0, max_tokens=60, structured_outputs=outputs)
    text = generate(llm, [params])[0].outputs[0].text
    assert text.count("\n") == 0
    assert "  " not in text
