"""Pitfalls of losslessness, batches and KV on real forward passes of tiny models. Numbers as in docs/pitfalls.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from model.pairs import add_tokenizer, generate, make_llm, make_pair, prompts, texts
from model.tiny import make_tiny
from safetensors.torch import load_file, save_file

from paceline import LLM, SamplingParams
from paceline.layers.sampling import SamplingBatch
from paceline.plan import StepPlan
from paceline.runner.model_runner import ModelRunner
from paceline.speculative.proposers.base import emitting_rows
from paceline.speculative.rejection import Proposal

GREEDY = SamplingParams(temperature=0.0, max_tokens=30)
METHODS: dict[str, dict[str, Any] | None] = {"plain": None, "draft": {}, "ngram": {"method": "ngram"}}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_pair(tmp_path_factory.mktemp("pair"))


def speculative(pair: tuple[Path, Path], method: str, k: int = 5) -> dict[str, Any] | None:
    if method == "plain":
        return None
    if method == "ngram":
        return {"method": "ngram", "num_speculative_tokens": k, "prompt_lookup_min": 1}
    return {"model": str(pair[1]), "num_speculative_tokens": k}


@pytest.fixture(params=list(METHODS))
def llm(request: pytest.FixtureRequest, pair: tuple[Path, Path]) -> Iterator[LLM]:
    with make_llm(pair[0], speculative(pair, request.param)) as made:
        yield made


@pytest.fixture
def drafted(pair: tuple[Path, Path]) -> Iterator[LLM]:
    with make_llm(pair[0], speculative(pair, "draft")) as made:
        yield made


@pytest.fixture(scope="module")
def plain_texts(pair: tuple[Path, Path]) -> list[list[int]]:
    with make_llm(pair[0]) as plain:
        return [texts(plain, [p], GREEDY)[0] for p in prompts(10)]


def accepted_per_draft(llm: LLM) -> float:
    return llm.stats().speculation.mean_acceptance_length - 1


def test_p05_at_temperature_0_a_seed_changes_nothing(llm: LLM, plain_texts: list[list[int]]) -> None:
    for seed in (None, 0, 77):
        params = SamplingParams(temperature=0.0, max_tokens=30, seed=seed)
        assert texts(llm, prompts(10), params) == plain_texts


def test_p05_p06_p13_seeded_text_is_the_same_alone_and_in_any_batch(llm: LLM) -> None:
    ids = prompts(8, seed=3)
    params = [SamplingParams(temperature=0.7, top_p=0.95, seed=i, max_tokens=20) for i in range(8)]
    solo = [texts(llm, [p], q)[0] for p, q in zip(ids, params, strict=True)]
    assert texts(llm, ids, params) == solo
    assert texts(llm, ids[::-1], params[::-1]) == solo[::-1]
    others = [SamplingParams(temperature=0.7, top_p=0.95, seed=i + 100, max_tokens=20) for i in range(8)]
    assert texts(llm, ids, others) != solo
    # p13: beside greedy, unseeded and differently restricted neighbours
    mixed: list[SamplingParams] = []
    for i, seeded in enumerate(params):
        neighbours = (seeded, GREEDY, SamplingParams(temperature=1.3, max_tokens=9), SamplingParams(top_k=3, min_p=0.1))
        mixed.append(seeded if i % 2 == 0 else neighbours[1 + i // 2 % 3])
    got = texts(llm, ids, mixed)
    assert [got[i] for i in range(0, 8, 2)] == [solo[i] for i in range(0, 8, 2)]


def test_p06_greedy_batches_equal_solo_runs(llm: LLM, plain_texts: list[list[int]]) -> None:
    assert texts(llm, prompts(10), GREEDY) == plain_texts


class Scripted:
    """A proposer with the right tokens up to `right` places and wrong ones behind them; needs no model."""

    def __init__(self, answers: dict[int, list[int]], right: int, k: int) -> None:
        self._answers, self._right, self._k = answers, right, k

    def propose(self, plan: StepPlan, sampling: SamplingBatch) -> Proposal:
        rows = emitting_rows(plan)
        drafts = torch.full((len(rows), self._k), -1, device=sampling.device)
        num = []
        for place, row in enumerate(rows):
            count = min(row.num_draft_tokens, self._k)
            answer = self._answers[row.seq_id]
            for step in range(count):
                token = answer[row.num_output_tokens + step] if row.num_output_tokens + step < len(answer) else 0
                drafts[place, step] = token if step < self._right else (token + 1) % 101
            num.append(count)
        width = max(num, default=0)
        return Proposal(drafts[:, :width], num)


@pytest.mark.parametrize("k", [1, 5])
def test_p07_p08_forced_rejection_at_every_place(pair: tuple[Path, Path], plain_texts: list[list[int]], k: int) -> None:
    """right = 0 is p08: a drafter that is always wrong, from its first token, gives exactly the plain output."""
    for right in range(k + 1):
        with make_llm(pair[0], speculative(pair, "ngram", k)) as llm:
            worker = llm._engine._executor._worker  # type: ignore[union-attr]
            worker.decoder._proposer = Scripted({i + 1: t for i, t in enumerate(plain_texts)}, right, k)
            outputs = generate(llm, prompts(10), GREEDY)
            assert [list(o.outputs[0].token_ids) for o in outputs] == plain_texts
            per_position = llm.stats().speculation.num_accepted_tokens_per_pos
            assert [count > 0 for count in per_position] == [place < right for place in range(len(per_position))]


def test_the_pair_accepts_some_and_rejects_some(drafted: LLM) -> None:
    """The other tests mean something only if every count of accepted drafts occurs."""
    generate(drafted, prompts(10), SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True))
    per_position = drafted.stats().speculation.num_accepted_tokens_per_pos
    assert per_position[0] < drafted.stats().speculation.num_drafts
    assert per_position[4] > 0


def test_p12_ragged_acceptance(pair: tuple[Path, Path], plain_texts: list[list[int]]) -> None:
    with make_llm(pair[0], speculative(pair, "draft"), max_num_batched_tokens=24) as llm:
        assert texts(llm, prompts(10), GREEDY) == plain_texts


def test_p05_a_seed_gives_the_same_text_from_a_warm_prefix_cache(drafted: LLM) -> None:
    """A cached prompt leaves a single token to compute, and a cold one many: the draws must not differ."""
    ids = prompts(6, seed=8, low=9, high=30)
    params = [SamplingParams(temperature=0.9, seed=i, max_tokens=16, ignore_eos=True) for i in range(6)]
    drafted._engine.reset_prefix_cache()  # type: ignore[union-attr]
    cold = generate(drafted, ids, params)
    warm = generate(drafted, ids, params)
    assert any(output.num_cached_tokens for output in warm)
    assert [o.outputs[0].token_ids for o in warm] == [o.outputs[0].token_ids for o in cold]


def test_p15_a_warm_request_accepts_as_many_and_prefills_nothing(drafted: LLM) -> None:
    ids = prompts(6, seed=5, low=30, high=60)
    params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    cold = generate(drafted, ids, params)
    rate_cold = accepted_per_draft(drafted)
    before = drafted.stats().speculation.num_accepted_tokens, drafted.stats().speculation.num_drafts
    plans: list[StepPlan] = []
    executor = drafted._engine._executor  # type: ignore[union-attr]
    submit = executor.submit
    executor.submit = lambda plan: plans.append(plan) or submit(plan)
    warm = generate(drafted, ids, params)
    stats = drafted.stats().speculation
    rate_warm = (stats.num_accepted_tokens - before[0]) / (stats.num_drafts - before[1])
    assert [o.outputs[0].token_ids for o in warm] == [o.outputs[0].token_ids for o in cold]
    assert abs(rate_warm - rate_cold) <= 0.05 * rate_cold
    for row in plans[0].rows:  # the first step of each: less than a block is left to compute, in either model
        assert len(row.token_ids) <= 4
        assert len(row.draft_chunk) <= 5
    assert len(plans[0].rows) == 6


def test_p16_a_cached_block_is_never_written_again(drafted: LLM) -> None:
    ids = prompts(6, seed=6, low=20, high=40)
    params = SamplingParams(temperature=0.7, seed=1, max_tokens=30)
    generate(drafted, ids, params)
    worker = drafted._engine._executor._worker  # type: ignore[union-attr]
    blocks = drafted._engine._scheduler.blocks  # type: ignore[union-attr]
    published = dict(blocks._published)
    assert len(published) > 20

    def contents(block: int) -> list[torch.Tensor]:
        slots = slice(block * 4, block * 4 + 4)
        return [layer.flatten(0, 1)[slots].clone() for r in (worker.target, worker.draft) for layer in r.pool.layers]

    before = {key: contents(block) for key, block in published.items()}
    generate(drafted, ids[:3] + prompts(5, seed=7), params)
    still = [key for key, block in published.items() if blocks._published.get(key) == block]
    assert len(still) > 20
    for key in still:
        assert all(torch.equal(a, b) for a, b in zip(before[key], contents(published[key]), strict=True))


def test_p17_text_after_a_cached_answer_is_right(drafted: LLM, pair: tuple[Path, Path]) -> None:
    """A second turn on top of a drafted answer reads the answer's blocks from the cache."""
    ids = prompts(4, seed=8)
    first = texts(drafted, ids, GREEDY)
    second = [p + t + [5, 6, 7] for p, t in zip(ids, first, strict=True)]
    outputs = generate(drafted, second, GREEDY)
    assert all(o.num_cached_tokens > len(p) // 4 * 4 for o, p in zip(outputs, ids, strict=True))
    with make_llm(pair[0]) as plain:
        assert [list(o.outputs[0].token_ids) for o in outputs] == texts(plain, second, GREEDY)


def test_p19_preemption_in_fp32_changes_no_text(pair: tuple[Path, Path], plain_texts: list[list[int]]) -> None:
    for method in ("plain", "draft", "ngram"):
        with make_llm(
            pair[0], speculative(pair, method), num_gpu_blocks_override=28, max_model_len=100, block_size=4
        ) as llm:
            assert texts(llm, prompts(10), GREEDY) == plain_texts
            assert llm.stats().num_preemptions > 0


def test_p22_eos_inside_a_run(drafted: LLM, plain_texts: list[list[int]]) -> None:
    """Make each token of a plain text the stop token in turn: the text ends with it, whatever was drafted."""
    text = plain_texts[0]
    for place, token in enumerate(text[:20]):
        params = SamplingParams(temperature=0.0, max_tokens=30, stop_token_ids=[token])
        output = generate(drafted, prompts(10)[:1], params)[0].outputs[0]
        assert list(output.token_ids) == text[: text.index(token) + 1]
        assert output.finish_reason == "stop"
        assert output.stop_reason == token
        assert place >= text.index(token)


def test_p38_long_request_beside_short_ones(pair: tuple[Path, Path], plain_texts: list[list[int]]) -> None:
    config = {"model": str(pair[1]), "num_speculative_tokens": 5, "max_model_len": 24, "proposer": "draft"}
    with make_llm(pair[0], config) as llm:
        outputs = generate(llm, prompts(10), GREEDY)
        assert [list(o.outputs[0].token_ids) for o in outputs] == plain_texts
        drafts = {len(p): o.metrics.speculative_decoding.num_drafts for p, o in zip(prompts(10), outputs, strict=True)}
        assert all(count == 0 for length, count in drafts.items() if length > 24)
        assert any(count > 0 for length, count in drafts.items() if length < 20)


def test_p39_padded_vocabularies_are_masked(tmp_path: Path) -> None:
    """Rows of padding that would win every argmax, in either model or in both: none is ever emitted."""
    for target_rows, draft_rows in ((109, 101), (101, 109), (109, 105)):
        folder = tmp_path / f"{target_rows}-{draft_rows}"
        target = add_tokenizer(pad_vocabulary(folder / "target", target_rows), 101)
        draft = add_tokenizer(pad_vocabulary(folder / "draft", draft_rows), 101)
        speculative = {"model": str(draft), "adaptive": False}
        with LLM(str(target), speculative_config=speculative, dtype="float32") as llm:
            for params in (GREEDY, SamplingParams(temperature=1.5, seed=1, max_tokens=30)):
                for text in texts(llm, prompts(4), params):
                    assert text
                    assert max(text) < 101
            assert llm.stats().speculation.num_accepted_tokens > 0


def pad_vocabulary(path: Path, rows: int) -> Path:
    make_tiny("llama", path, vocab_size=rows)
    weights = load_file(path / "model.safetensors")
    rng = torch.Generator().manual_seed(0)  # the same first 101 rows whatever the padding
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        weights[name][:101] = torch.randn(101, weights[name].shape[1], generator=rng) * 0.3
    weights["lm_head.weight"][101:] *= 100.0
    for name in [n for n in weights if ".layers." in n]:
        weights[name] = torch.randn(weights[name].shape, generator=rng) * 0.2 + ("norm" in name)
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    return path


@torch.inference_mode()
def poison(runner: ModelRunner, token: int) -> None:
    runner.model.embedding[token] = float("nan")


def test_p31_nan_in_one_row_fails_that_request_alone(pair: tuple[Path, Path], plain_texts: list[list[int]]) -> None:
    """Token 3's embedding is NaN: prompts with it fail, prompts without it are untouched, before and after."""
    ids = [[t if t != 3 else 4 for t in p] for p in prompts(6, seed=11)]
    for method in ("plain", "draft"):
        with make_llm(pair[0], speculative(pair, method)) as llm:
            clean = texts(llm, ids, SamplingParams(temperature=0.0, max_tokens=8, logit_bias={3: -100}))
            poison(llm._engine._executor._worker.target, 3)  # type: ignore[union-attr]
            bad = [ids[0] + [3], *ids, ids[1][:2] + [3] + ids[2]]
            params = SamplingParams(temperature=0.0, max_tokens=8, logit_bias={3: -100})
            for _ in range(2):  # the second time over blocks that the failed rows gave back
                outputs = generate(llm, bad, params)
                assert outputs[0].outputs[0].finish_reason == "error"
                assert outputs[-1].outputs[0].finish_reason == "error"
                assert [list(o.outputs[0].token_ids) for o in outputs[1:-1]] == clean
            assert llm.stats().finished_error == 4


def test_nan_in_the_draft_costs_the_request_its_drafts_and_nothing_else(
    pair: tuple[Path, Path], plain_texts: list[list[int]]
) -> None:
    with make_llm(pair[0], speculative(pair, "draft")) as llm:
        poison(llm._engine._executor._worker.draft, 7)  # type: ignore[union-attr]
        for _ in range(2):
            assert texts(llm, prompts(10), GREEDY) == plain_texts
        assert llm.stats().draft_failures > 0
        assert llm.stats().speculation.num_accepted_tokens > 0
