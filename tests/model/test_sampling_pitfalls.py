"""Sampling parameters, logprobs and failures under speculation, on real forward passes of a tiny pair.

The reference is always the same engine without drafts; numbers as in docs/pitfalls.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from model.pairs import add_tokenizer, generate, make_llm, make_pair, prompts, texts
from transformers import AutoModelForCausalLM

from paceline import LLM, SamplingParams
from paceline.errors import InvalidRequestError
from paceline.outputs import RequestOutput

VOCAB = 101
IDS = prompts(5, seed=21, high=24)
RESTRICTIONS: dict[str, dict[str, Any]] = {
    "frequency": {"frequency_penalty": 1.5},
    "presence": {"presence_penalty": 2.0, "frequency_penalty": -0.3},
    "repetition": {"repetition_penalty": 1.8},
    "repetition wanted": {"repetition_penalty": 0.7},
    "bias": {"logit_bias": {7: 6.0, 11: -100.0, 40: 4.0}},
    "allowed": {"allowed_token_ids": list(range(3, 40))},
    "min_tokens": {"min_tokens": 20, "logit_bias": {2: 8.0}},
    "bad_words": {"bad_words": ["t5", "t9 t12", "t30"]},
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    target, draft = make_pair(tmp_path_factory.mktemp("pair"))
    add_tokenizer(target, VOCAB)
    return target, draft


def speculative(pair: tuple[Path, Path], method: str) -> dict[str, Any] | None:
    if method == "plain":
        return None
    if method == "ngram":
        return {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 1}
    return {"model": str(pair[1]), "num_speculative_tokens": 5}


def make(pair: tuple[Path, Path], method: str, **arguments: Any) -> LLM:
    return make_llm(pair[0], speculative(pair, method), **{"skip_tokenizer_init": False, **arguments})


@pytest.fixture(scope="module")
def plain(pair: tuple[Path, Path]) -> Iterator[LLM]:
    with make(pair, "plain", max_logprobs=-1) as llm:
        yield llm


@pytest.fixture(scope="module", params=["draft", "ngram"])
def fast(request: pytest.FixtureRequest, pair: tuple[Path, Path]) -> Iterator[LLM]:
    with make(pair, request.param, max_logprobs=-1) as llm:
        yield llm


@pytest.mark.parametrize("name", list(RESTRICTIONS))
def test_p27_p28_restricted_greedy_text_is_the_plain_one(fast: LLM, plain: LLM, name: str) -> None:
    ignore_eos = name != "min_tokens"
    params = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=ignore_eos, **RESTRICTIONS[name])
    expected = texts(plain, IDS, params)
    before = fast.stats().speculation.num_accepted_tokens
    assert texts(fast, IDS, params) == expected
    if fast.config.draft is not None:  # text that must not repeat is nothing for n-grams
        assert fast.stats().speculation.num_accepted_tokens > before, "accepted drafts are what could be wrong"
    free = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=ignore_eos)
    assert texts(plain, IDS, free) != expected, "the restriction must matter here"


@pytest.mark.parametrize("temperature", [1e-300, 1e-45, 5e-39, 1.2e-38, 5e-38, 1e-37, 1e-20, 1e-6])
@pytest.mark.parametrize("name", ["none", "bias", "allowed", "bad_words"])
def test_the_smallest_temperatures_are_greedy_and_keep_restrictions(fast: LLM, temperature: float, name: str) -> None:
    """A logit over such a temperature is beyond float32."""
    restriction = RESTRICTIONS.get(name, {})
    for more in ({}, {"top_k": 1}, {"top_p": 0.5, "min_p": 0.1}):
        cold = SamplingParams(temperature=temperature, max_tokens=12, ignore_eos=True, **restriction, **more)
        greedy = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, **restriction)
        assert texts(fast, IDS[:2], cold) == texts(fast, IDS[:2], greedy)


def test_p27_penalties_count_what_was_said(plain: LLM) -> None:
    """The strongest penalties leave no token twice; the opposite ones repeat one token for ever."""
    ids = [[5, 6, 7]]
    never = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, repetition_penalty=1000.0)
    said = texts(plain, ids, never)[0]
    assert len(set(said)) == 40
    assert not {5, 6, 7} & set(said), "repetition looks at the prompt"
    again = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, frequency_penalty=-2.0)
    assert len(set(texts(plain, ids, again)[0][20:])) == 1


def neighbours(token_ids: list[int]) -> list[tuple[int, int]]:
    return list(itertools.pairwise(token_ids))


def test_bad_words_never_appear_and_only_their_last_token_is_held_back(fast: LLM) -> None:
    """t9 and t12 are made likely: apart they are said often, one behind the other only without the ban."""
    said: dict[bool, list[int]] = {}
    for banned in (True, False):
        words = ["t9 t12", "t30"] if banned else []
        params = SamplingParams(
            seed=3, max_tokens=50, ignore_eos=True, logit_bias={9: 4.0, 12: 5.0, 30: 3.0}, bad_words=words, n=3
        )
        answers = generate(fast, IDS[:1], params)[0].outputs
        said[banned] = [token for answer in answers for token in [*answer.token_ids, -1]]
    assert (9, 12) in neighbours(said[False])
    assert 30 in said[False]
    assert (9, 12) not in neighbours(said[True])
    assert 30 not in said[True]
    assert {9, 12} < set(said[True])


def test_p05_p13_restricted_rows_repeat_by_seed_beside_any_neighbours(fast: LLM) -> None:
    params = [
        SamplingParams(temperature=0.9, seed=i, max_tokens=20, ignore_eos=True, **more)
        for i, more in enumerate([{}, *list(RESTRICTIONS.values())[:4]])
    ]
    solo = [texts(fast, [ids], one)[0] for ids, one in zip(IDS, params, strict=True)]
    assert texts(fast, IDS, params) == solo
    assert texts(fast, IDS[::-1], params[::-1]) == solo[::-1]


# p29: logprobs


def values(output: RequestOutput) -> list[dict[int, float]]:
    logprobs = output.outputs[0].logprobs
    assert logprobs is not None
    return [{token: entry.logprob for token, entry in place.items()} for place in logprobs]


@pytest.mark.parametrize("more", [{}, {"frequency_penalty": 1.2, "logit_bias": {7: 5.0}}], ids=["free", "restricted"])
def test_p29_logprobs_are_the_plain_ones_and_raw(fast: LLM, plain: LLM, more: dict[str, Any]) -> None:
    """At accepted, recovered and bonus tokens alike, within 1e-4 in float32, of the whole vocabulary."""
    params = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True, logprobs=-1, **more)
    reference, outputs = generate(plain, IDS, params), generate(fast, IDS, params)
    for expected, got in zip(reference, outputs, strict=True):
        assert got.outputs[0].token_ids == expected.outputs[0].token_ids
        for place, (mine, theirs) in enumerate(zip(values(got), values(expected), strict=True)):
            assert len(mine) == VOCAB
            worst = max(abs(mine[token] - theirs[token]) for token in theirs)
            assert worst < 1e-4, f"place {place} differs by {worst}"
            assert abs(sum(torch.tensor(list(mine.values())).exp().tolist()) - 1.0) < 1e-4, "raw: nothing is masked"
        assert abs((got.outputs[0].cumulative_logprob or 0) - (expected.outputs[0].cumulative_logprob or 0)) < 1e-3
    counts = outputs[0].metrics.speculative_decoding
    for output in outputs[1:]:
        counts.add(output.metrics.speculative_decoding)
    assert 0 < counts.num_accepted_tokens < counts.num_draft_tokens, "accepted and recovered tokens both occurred"


def test_p29_logprobs_of_sampled_tokens_follow_from_the_text_alone(fast: LLM, plain: LLM) -> None:
    """Score the sampled answer as a prompt without drafts: the same numbers, whatever kept or drew each token."""
    params = SamplingParams(temperature=1.0, seed=5, max_tokens=30, ignore_eos=True, logprobs=0)
    outputs = generate(fast, IDS, params)
    whole = [ids + list(o.outputs[0].token_ids) for ids, o in zip(IDS, outputs, strict=True)]
    scored = generate(plain, whole, SamplingParams(max_tokens=1, prompt_logprobs=0))
    for ids, text, output, score in zip(IDS, whole, outputs, scored, strict=True):
        assert score.prompt_logprobs is not None
        for place, mine in enumerate(values(output), start=len(ids)):
            expected = score.prompt_logprobs[place]
            assert expected is not None
            assert abs(mine[text[place]] - expected[text[place]].logprob) < 1e-4


@pytest.fixture(scope="module")
def exact(pair: tuple[Path, Path]) -> Any:
    return AutoModelForCausalLM.from_pretrained(pair[0], dtype=torch.float32).eval()


def check_prompt_logprobs(exact: Any, output: RequestOutput, num_top: int) -> None:
    ids = output.prompt_token_ids
    with torch.inference_mode():
        logprobs = exact(torch.tensor([ids])).logits[0].log_softmax(-1)
    assert output.prompt_logprobs is not None
    assert len(output.prompt_logprobs) == len(ids)
    assert output.prompt_logprobs[0] is None
    for place, entries in enumerate(output.prompt_logprobs[1:]):
        assert entries is not None
        assert ids[place + 1] in entries
        assert num_top <= len(entries) <= num_top + 1
        for token, entry in entries.items():
            assert abs(entry.logprob - logprobs[place, token].item()) < 1e-4
            assert entry.rank == (logprobs[place] > logprobs[place, token]).sum() + 1


@pytest.mark.parametrize("method", ["plain", "draft", "ngram"])
def test_prompt_logprobs_are_the_models_own(pair: tuple[Path, Path], exact: Any, method: str) -> None:
    """Over chunks of 16 tokens, twice (the cache holds no logits), beside rows that ask for none, and with n = 2."""
    ids = [prompts(1, seed=s, low=n, high=n)[0] for s, n in enumerate((1, 2, 16, 17, 45))]
    params = [SamplingParams(max_tokens=3, prompt_logprobs=s % 4, n=1 + s % 2, ignore_eos=True) for s in range(5)]
    with make(pair, method, max_num_batched_tokens=16) as llm:
        for _ in range(2):
            outputs = generate(llm, [*ids, ids[4]], [*params, SamplingParams(max_tokens=3, ignore_eos=True)])
            for num_top, output in enumerate(outputs[:5]):
                check_prompt_logprobs(exact, output, num_top % 4)
                assert output.num_cached_tokens == 0 or len(output.outputs) > 1  # the second answer may read it
            assert outputs[5].prompt_logprobs is None


def test_prompt_logprobs_survive_preemption(pair: tuple[Path, Path], exact: Any) -> None:
    ids = prompts(8, seed=4, low=24, high=40)
    params = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True, prompt_logprobs=1)
    with make(pair, "draft", num_gpu_blocks_override=28, max_model_len=100, max_num_batched_tokens=24) as llm:
        for output in generate(llm, ids, params):
            check_prompt_logprobs(exact, output, 1)
        assert llm.stats().num_preemptions > 0


def test_more_logprobs_than_allowed_are_refused(pair: tuple[Path, Path]) -> None:
    with make(pair, "plain") as llm:
        for name in ("logprobs", "prompt_logprobs"):
            with pytest.raises(InvalidRequestError, match=name):
                generate(llm, IDS[:1], SamplingParams(**{name: -1}))
        with pytest.raises(InvalidRequestError, match="bad_words need a tokenizer"), make_llm(pair[0]) as bare:
            generate(bare, IDS[:1], SamplingParams(bad_words=["t3"]))


# p31: rows that cannot go on


def test_p31_a_row_with_nothing_left_to_sample_fails_alone_and_says_why(pair: tuple[Path, Path]) -> None:
    """Allowed are t5 and t6, and neither may follow the other: the third token has no law. Drafts die with it."""
    impossible = SamplingParams(
        temperature=0.0, max_tokens=8, allowed_token_ids=[5, 6], bad_words=["t5 t6", "t6 t5", "t5 t5", "t6 t6"]
    )
    fine = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    for method in ("plain", "draft", "ngram"):
        with make(pair, method) as llm:
            expected = texts(llm, IDS, fine)
            outputs = generate(llm, [IDS[0], *IDS], [impossible, *[fine] * len(IDS)])
            failed = outputs[0].outputs[0]
            assert failed.finish_reason == "error"
            assert failed.error is not None
            assert "allowed_token_ids, bad_words" in failed.error
            assert "NaN" not in failed.error
            assert len(failed.token_ids) == 1
            assert [list(o.outputs[0].token_ids) for o in outputs[1:]] == expected
            assert llm.stats().finished_error == 1
            assert llm.stats().draft_failures == 0, "the draft is as sound as the model"


# Block verification


@pytest.fixture(scope="module")
def block(pair: tuple[Path, Path]) -> Iterator[LLM]:
    config = {**(speculative(pair, "draft") or {}), "rejection_sample_method": "block"}
    with make_llm(pair[0], config) as llm:
        yield llm


def test_block_verification_greedy_text_is_the_plain_one(block: LLM, plain: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True, frequency_penalty=0.4)
    assert texts(block, IDS, params) == texts(plain, IDS, params)
    assert "block verification" in block.describe()["speculation"]


def test_p05_p06_p13_block_verification_repeats_by_seed_in_any_batch(block: LLM) -> None:
    params = [SamplingParams(temperature=0.8, seed=i, max_tokens=20, ignore_eos=True) for i in range(len(IDS) - 1)]
    params.append(SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True))
    solo = [texts(block, [ids], one)[0] for ids, one in zip(IDS, params, strict=True)]
    assert texts(block, IDS, params) == solo
    assert texts(block, IDS[::-1], params[::-1]) == solo[::-1]


def test_synthetic_acceptance_keeps_what_it_is_told_and_says_so(pair: tuple[Path, Path]) -> None:
    """Three of four drafts, whatever the models say, for greedy and random rows; marked in every output."""
    config = {
        **(speculative(pair, "draft") or {}),
        "num_speculative_tokens": 4,
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_rates": [1.0, 1.0, 1.0, 0.0],
    }
    with make_llm(pair[0], config) as llm:
        assert "NOT the target's" in llm.describe()["speculation"]
        params = [SamplingParams(temperature=i % 2, max_tokens=41, ignore_eos=True) for i in range(len(IDS))]
        for output in generate(llm, IDS, params):
            counts = output.metrics.speculative_decoding
            assert counts.synthetic
            assert counts.num_accepted_tokens_per_pos == [10, 10, 10, 0]  # the first token is never drafted
        assert llm.stats().speculation.synthetic
