"""p03, p10, p23, p25 and p26 on real forward passes: laws bit for bit, logits alone and in a chunk, cuts and counts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from model.pairs import add_tokenizer, generate, make_llm, make_pair, prompts, texts
from model.rows import Feed, Rows
from model.tiny import make_tiny
from torch import Tensor

from paceline import LLM, SamplingParams
from paceline.config import Dtype, ModelConfig
from paceline.layers.sampling import Law
from paceline.runner.model_runner import ModelRunner
from paceline.speculative import rejection
from paceline.speculative.acceptance import Acceptance
from paceline.speculative.proposers import draft_model
from paceline.speculative.rejection import Outcome, Proposal

VOCAB = 101


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    target, draft = make_pair(tmp_path_factory.mktemp("pair"))
    return add_tokenizer(target, VOCAB), draft


@pytest.fixture(scope="module", params=["plain", "draft"])
def llm(request: pytest.FixtureRequest, pair: tuple[Path, Path]) -> Iterator[LLM]:
    config = {"model": str(pair[1]), "num_speculative_tokens": 5} if request.param == "draft" else None
    with make_llm(pair[0], config, skip_tokenizer_init=False) as made:
        yield made


def test_p03_the_law_in_the_ratio_is_bit_for_bit_the_law_drawn_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BF16 weights, 32k tokens with many near ties, every restriction, rows of all kinds in one batch."""
    path = make_tiny("llama", tmp_path / "model", vocab_size=32_000, num_hidden_layers=1)
    drawn: list[Tensor] = []
    ratios: list[tuple[list[int], Proposal]] = []
    draw = draft_model.draw

    def seen(probs: Tensor, u: Tensor) -> Tensor:
        drawn.append(probs.clone())
        return draw(probs, u)

    def decide(law: Law, proposal: Proposal, u_accept: Tensor, u_target: Tensor) -> Outcome:
        ratios.append((law.random_rows.tolist(), proposal))
        return rejection.accept(law, proposal, u_accept, u_target)

    monkeypatch.setattr(draft_model, "draw", seen)
    config = {"model": str(path), "num_speculative_tokens": 3}
    with make_llm(path, config, dtype="bfloat16") as made:
        made._engine._executor._worker.decoder._acceptance = Acceptance(decide)  # type: ignore[union-attr]
        params = [
            SamplingParams(temperature=0.7, top_p=0.9, seed=1, max_tokens=16, ignore_eos=True),
            SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True),
            SamplingParams(top_k=40, min_p=0.01, presence_penalty=1.0, seed=2, max_tokens=16, ignore_eos=True),
        ]
        generate(made, prompts(3, seed=2, low=5, high=9), params)
    compared = 0
    for random_rows, proposal in ratios:
        if proposal.draft_probs is None:
            continue
        for step in range(proposal.num_speculative_tokens):
            rows = [place for place, row in enumerate(random_rows) if proposal.num_drafted[row] > step]
            if rows:
                assert torch.equal(proposal.draft_probs[rows, step], drawn.pop(0))
                compared += len(rows)
    assert not drawn
    assert compared > 10


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_p10_a_position_has_its_logits_alone_and_inside_a_chunk(pair: tuple[Path, Path], dtype: Dtype) -> None:
    """Greedy choices may differ only where the two likeliest tokens are closer than the rounding is."""
    text = prompts(1, seed=9, low=60, high=60)[0]
    runner = ModelRunner.load(ModelConfig(path=pair[0], name="tiny", max_model_len=256, dtype=dtype))
    rows = Rows(1, 64, 4)
    runner.allocate_kv(rows.num_blocks, rows.block_size)

    def logits(length: int) -> Tensor:
        parts = [
            runner.forward(rows.batch([Feed(0, start, text[start : start + length])])).logits
            for start in range(0, len(text), length)
        ]
        return torch.cat(parts)

    alone, chunked = logits(1), logits(6)
    error = (alone - chunked).abs().max().item()
    assert error < (1e-4 if dtype == "float32" else 0.35)
    top = alone.topk(2).values
    margins = top[:, 0] - top[:, 1]
    flips = alone.argmax(-1) != chunked.argmax(-1)
    assert (margins[flips] <= 2 * error).all(), "a flip that no rounding explains"
    assert int(flips.sum()) <= (0 if dtype == "float32" else 3)


def test_p23_text_ids_and_logprobs_are_cut_at_one_place(llm: LLM) -> None:
    """Each token of the free text in turn as stop string, at every place of a run of drafts."""
    prompt = prompts(1, seed=3, low=8, high=8)
    free = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=0)
    whole = generate(llm, prompt, free)[0].outputs[0]
    words = whole.text.split()
    assert len(words) == 12
    for include in (False, True):
        for stop in dict.fromkeys(words):
            place = next(i for i, word in enumerate(words) if word.startswith(stop))  # t1 also ends t12
            params = SamplingParams(
                temperature=0.0,
                max_tokens=12,
                ignore_eos=True,
                logprobs=0,
                stop=[stop],
                include_stop_str_in_output=include,
            )
            answer = generate(llm, prompt, params)[0].outputs[0]
            assert (answer.finish_reason, answer.stop_reason) == ("stop", stop)
            assert answer.token_ids == whole.token_ids[: place + 1]
            assert answer.logprobs is not None
            assert [next(iter(entry)) for entry in answer.logprobs] == answer.token_ids
            assert answer.text == " ".join(words[:place] + ([stop] if include else [])) + (
                "" if include or place == 0 else " "
            )


def test_a_stop_token_is_among_the_ids_and_in_the_text_only_if_asked_for(llm: LLM) -> None:
    prompt = prompts(1, seed=3, low=8, high=8)
    whole = texts(llm, prompt, SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True))[0]
    last = next(token for place, token in enumerate(whole) if place > 3 and token not in whole[:place])
    for include in (False, True):
        params = SamplingParams(
            temperature=0.0, max_tokens=12, ignore_eos=True, stop_token_ids=[last], include_stop_str_in_output=include
        )
        answer = generate(llm, prompt, params)[0].outputs[0]
        kept = whole[: whole.index(last) + 1]
        assert (answer.token_ids, answer.stop_reason) == (kept, last)
        assert answer.text.split() == [f"t{token}" for token in (kept if include else kept[:-1])]


@pytest.mark.parametrize("n", [2, 8])
def test_p25_p26_n_answers_are_those_of_n_seeds_and_every_token_is_counted(llm: LLM, n: int) -> None:
    """Answers differ, repeat with the seed, and read the prompt once; deltas, ids and counters agree."""
    prompt = prompts(1, seed=6, low=21, high=21)[0]
    params = SamplingParams(temperature=1.5, seed=4, n=n, max_tokens=15)
    before = llm.stats().generation_tokens
    first, second = (generate(llm, [prompt], params)[0] for _ in range(2))
    answers = [answer.token_ids for answer in first.outputs]
    assert [answer.token_ids for answer in second.outputs] == answers
    assert len({tuple(answer) for answer in answers}) == n
    assert first.num_cached_tokens == 20, "the other answers found the prompt in the cache"
    assert llm.stats().generation_tokens - before == 2 * sum(map(len, answers))
    streamed: dict[int, list[int]] = {index: [] for index in range(n)}
    for delta in llm.stream({"prompt_token_ids": prompt}, params):
        streamed[delta.index] += delta.token_ids
    assert list(streamed.values()) == answers
    alone = SamplingParams(temperature=1.5, seed=4, max_tokens=15)
    assert texts(llm, [prompt], alone)[0] == answers[0]


def test_p05_a_seed_gives_the_same_text_cold_and_warm(llm: LLM) -> None:
    """Whatever the prefix cache holds of a prompt: nothing, all but its last token, or something between."""
    for length in range(17, 25):
        prompt = prompts(1, seed=length, low=length, high=length)
        params = SamplingParams(temperature=1.5, seed=7, max_tokens=12, ignore_eos=True)
        cold = texts(llm, prompt, params)
        output = generate(llm, prompt, params)
        assert output[0].num_cached_tokens >= length - 4
        assert [list(output[0].outputs[0].token_ids)] == cold
