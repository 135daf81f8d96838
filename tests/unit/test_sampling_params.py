"""Every field is honoured or refused with its name."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from paceline import SamplingParams
from paceline.errors import InvalidRequestError
from paceline.sampling_params import check_num_logprobs

BAD: list[tuple[str, Any]] = [
    ("n", 0), ("n", True), ("n", 1.5), ("n", 1000),
    ("temperature", -0.1), ("temperature", float("nan")), ("temperature", float("inf")), ("temperature", "1"),
    ("temperature", None), ("temperature", True),
    ("top_p", 0), ("top_p", 1.01), ("top_p", -1), ("top_k", -2), ("top_k", 1.0), ("min_p", 1.1), ("min_p", -0.1),
    ("seed", 1.5), ("seed", 2**64), ("seed", True),
    ("stop", ""), ("stop", [""]), ("stop", [1]), ("stop", {"a": 1}),
    ("stop_token_ids", [-1]), ("stop_token_ids", ["a"]), ("stop_token_ids", 3),
    ("ignore_eos", 1), ("max_tokens", 0), ("max_tokens", -1), ("max_tokens", 2.0), ("min_tokens", -1),
    ("min_tokens", 17), ("logprobs", -2), ("logprobs", True), ("prompt_logprobs", -2),
    ("prompt_logprobs", 1.0),
    ("logit_bias", {1: 101}), ("logit_bias", {"a": 1}), ("logit_bias", {-1: 1}), ("logit_bias", [1]),
    ("logit_bias", {1: float("nan")}),
    ("allowed_token_ids", []), ("allowed_token_ids", [-1]),
    # p27, p28: values out of range, and what is not there yet, are refused, never ignored
    ("presence_penalty", 2.1), ("presence_penalty", -2.1), ("frequency_penalty", 3), ("frequency_penalty", "1"),
    ("frequency_penalty", float("nan")), ("repetition_penalty", 0), ("repetition_penalty", -1.0),
    ("repetition_penalty", 1e9), ("repetition_penalty", True), ("bad_words", "x"), ("bad_words", [""]),
    ("bad_words", [" "]), ("bad_words", [3]), ("structured_outputs", {}), ("structured_outputs", 3),
    ("logits_processors", [print]), ("truncate_prompt_tokens", 5), ("spaces_between_special_tokens", False),
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
        frequency_penalty=None,
        repetition_penalty=1.0,
        logits_processors=[],
        bad_words=None,
        top_k=-1,
        stop=None,
    )
    assert quiet == SamplingParams()


def test_p28_more_logprobs_than_the_engine_allows() -> None:
    for name in ("logprobs", "prompt_logprobs"):
        for value in (-1, 21):
            params = SamplingParams(**{name: value})
            check_num_logprobs(params, -1)
            with pytest.raises(InvalidRequestError, match=f"{name} must be between 0 and 20.*max_logprobs") as caught:
                check_num_logprobs(params, 20)
            assert caught.value.param == name
        check_num_logprobs(SamplingParams(**{name: 20}), 20)


@pytest.mark.parametrize("name", ["stop", "bad_words"])
def test_every_text_is_looked_for_at_every_token_so_they_are_few(name: str) -> None:
    SamplingParams(**{name: ["x"] * 1000})
    with pytest.raises(InvalidRequestError, match="has 1001 texts; at most 1000"):
        SamplingParams(**{name: ["x"] * 1001})


SIZES: list[tuple[str, Any, Any, str]] = [  # the most that is taken, and one more
    ("bad_words", ["x" * 256], ["x" * 257], "a text of 257 characters; at most 256"),
    ("bad_words", ["x" * 256] * 64, ["x" * 256] * 64 + ["x"], "16385 characters in all; at most 16384"),
    ("stop", "x" * 1024, "x" * 1025, "a text of 1025 characters; at most 1024"),
    ("stop", ["x" * 1024] * 16, ["x" * 1024] * 16 + ["x"], "16385 characters in all; at most 16384"),
    ("stop_token_ids", list(range(1024)), list(range(1025)), "1025 token ids; at most 1024"),
    ("allowed_token_ids", [1] * 16384, [1] * 16385, "16385 token ids; at most 16384"),
    ("logit_bias", dict.fromkeys(range(4096), 1), dict.fromkeys(range(4097), 1), "4097 entries; at most 4096"),
]


@pytest.mark.parametrize(("name", "most", "more", "words"), SIZES, ids=[f"{s[0]}: {s[3]}" for s in SIZES])
def test_no_request_holds_up_the_others_by_what_it_names(name: str, most: object, more: object, words: str) -> None:
    SamplingParams(**{name: most})
    with pytest.raises(InvalidRequestError, match=f"^{name} has {words}") as caught:
        SamplingParams(**{name: more})
    assert caught.value.param == name


@pytest.mark.parametrize("name", ["stop", "bad_words", "n", "best_of", "use_beam_search", "x" * 10_000])
def test_an_error_quotes_only_the_beginning_of_what_is_wrong(name: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**{name: {"y" * 10_000: 1}})
    assert len(str(caught.value)) < 300


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
