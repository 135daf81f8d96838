"""Every field is honoured or refused with its name."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from paceline import SamplingParams
from paceline.errors import InvalidRequestError

BAD: list[tuple[str, Any]] = [
    ("n", 0), ("n", True), ("n", 1.5), ("n", 1000),
    ("temperature", -0.1), ("temperature", float("nan")), ("temperature", float("inf")), ("temperature", "1"),
    ("temperature", None), ("temperature", True),
    ("top_p", 0), ("top_p", 1.01), ("top_p", -1), ("top_k", -2), ("top_k", 1.0), ("min_p", 1.1), ("min_p", -0.1),
    ("seed", 1.5), ("seed", 2**64), ("seed", True),
    ("stop", ""), ("stop", [""]), ("stop", [1]), ("stop", {"a": 1}),
    ("stop_token_ids", [-1]), ("stop_token_ids", ["a"]), ("stop_token_ids", 3),
    ("ignore_eos", 1), ("max_tokens", 0), ("max_tokens", -1), ("max_tokens", 2.0), ("min_tokens", -1),
    ("min_tokens", 17), ("logprobs", -1), ("logprobs", 21), ("logprobs", True),
    ("logit_bias", {1: 101}), ("logit_bias", {"a": 1}), ("logit_bias", {-1: 1}), ("logit_bias", [1]),
    ("logit_bias", {1: float("nan")}),
    ("allowed_token_ids", []), ("allowed_token_ids", [-1]),
    # p27, p28: what is not there yet is refused, never ignored
    ("presence_penalty", 0.5), ("frequency_penalty", -0.5), ("repetition_penalty", 1.1), ("bad_words", ["x"]),
    ("repetition_penalty", True), ("prompt_logprobs", 1), ("structured_outputs", {"json": "{}"}),
    ("use_beam_search", True), ("best_of", 4), ("best_of", True), ("length_penalty", 0.5), ("early_stopping", True),
    ("temprature", 1.0),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD, ids=[f"{n}={v!r}" for n, v in BAD])
def test_bad_values_are_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name
    assert name in str(caught.value)


def test_values_that_ask_for_nothing_are_taken() -> None:
    quiet = SamplingParams(
        use_beam_search=False,
        best_of=1,
        presence_penalty=0,
        repetition_penalty=1.0,
        bad_words=None,
        top_k=-1,
        stop=None,
    )
    assert quiet == SamplingParams()


def test_nearest_name() -> None:
    with pytest.raises(InvalidRequestError, match="Did you mean 'temperature'"):
        SamplingParams(temprature=0.5)


def test_spellings() -> None:
    params = SamplingParams(stop="\n", logit_bias={"7": 1})
    assert params.stop == ["\n"]
    assert params.logit_bias == {7: 1.0}


def test_frozen_and_crosses_processes_by_value() -> None:
    params = SamplingParams(temperature=0.3, stop=["a"], logit_bias={3: -1.5}, seed=2**64 - 1)
    with pytest.raises(AttributeError):
        params.temperature = 1.0  # type: ignore[misc]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params
