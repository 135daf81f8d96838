"""The captured step against the eager decoder: the same tokens from the same plans.

On a CPU it runs uncaptured, with the kernels' torch references (or, with TRITON_INTERPRET=1, the kernels themselves);
on a GPU it runs as graphs, and is compared with the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from model.pairs import generate, make_llm, make_pair, prompts, texts
from model.torch_forward import torch_forward
from torch import Tensor

from paceline import LLM, SamplingParams
from paceline.kernels.product import Product
from paceline.models import fused
from paceline.models.fused import PagedBatch
from paceline.models.llama import DecoderLayer
from paceline.runner.batch_inputs import Span, build
from paceline.speculative.captured import CapturedDecoder
from paceline.step_forms import Form
from paceline.worker.worker import Worker


@pytest.fixture(autouse=True)
def without_native_forward() -> Iterator[None]:
    with torch_forward():
        yield


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_pair(tmp_path_factory.mktemp("pair"))


def worker_of(llm: LLM) -> Worker:
    return llm._engine._executor._worker  # type: ignore[attr-defined,no-any-return]


def with_captured_steps(llm: LLM, *, max_num_seqs: int = 8, k: int = 5, split_from: int = 2) -> LLM:
    """Let the engine's worker run decode steps as a GPU does."""
    worker = worker_of(llm)
    for runner in filter(None, (worker.target, worker.draft)):
        runner.use_fused = True
    worker.captured = CapturedDecoder(
        worker.target, worker.draft, block_size=4, vocab_size=101, max_num_seqs=max_num_seqs, max_model_len=256,
        draft_counts=list(range(k + 1)), split_from=split_from,
    )  # fmt: skip
    worker.captured.capture()
    drafts = llm._engine._scheduler.drafts  # type: ignore[union-attr]
    drafts._texts, drafts.policy = None, replace(drafts.policy, looks_up=False)  # as beside captured steps
    return llm


GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


def drafting(draft: Path, k: int) -> dict[str, object]:
    return {"model": str(draft), "num_speculative_tokens": k}


@pytest.mark.parametrize("k", [0, 1, 3, 5])
def test_greedy_text_is_that_of_the_eager_decoder(pair: tuple[Path, Path], k: int) -> None:
    target, draft = pair
    ids = prompts(8)
    expected = texts(make_llm(target, device="cpu"), ids, GREEDY)
    llm = with_captured_steps(make_llm(target, drafting(draft, k) if k else None), k=k)
    assert texts(llm, ids, GREEDY) == expected
    stats = llm._engine.stats()
    assert stats.num_captured_steps == stats.num_decode_steps > 0
    if k:
        assert stats.speculation.num_accepted_tokens > 0


@pytest.mark.parametrize("params", [
    {"temperature": 0.8}, {"temperature": 1.3, "top_p": 0.8}, {"temperature": 1.0, "top_k": 5},
    {"temperature": 1.0, "min_p": 0.1, "top_k": 20, "top_p": 0.9},
])  # fmt: skip
def test_p05_a_seed_gives_the_same_text_captured_or_not(pair: tuple[Path, Path], params: dict[str, float]) -> None:
    target, draft = pair
    ids = prompts(6, seed=3)
    wanted = [SamplingParams(**params, seed=i, max_tokens=20, ignore_eos=True) for i in range(6)]
    expected = texts(make_llm(target, drafting(draft, 4), device="cpu"), ids, wanted)
    assert texts(with_captured_steps(make_llm(target, drafting(draft, 4)), k=4), ids, wanted) == expected


def test_p13_mixed_batches_and_ends_anywhere(pair: tuple[Path, Path]) -> None:
    """Greedy and random rows, different lengths, EOS; rows that the captured step cannot do come and go."""
    target, draft = pair
    ids = prompts(12, seed=5)
    wanted = [
        SamplingParams(
            temperature=0 if i % 3 else 0.9, seed=i, max_tokens=3 + 2 * i, ignore_eos=bool(i % 2),
            **({"logit_bias": {7: 2.0}} if i == 5 else {}),
        )
        for i in range(12)
    ]  # fmt: skip
    expected = texts(make_llm(target, drafting(draft, 3), device="cpu"), ids, wanted)
    llm = with_captured_steps(make_llm(target, drafting(draft, 3)), k=3)
    assert texts(llm, ids, wanted) == expected
    stats = llm._engine.stats()
    assert 0 < stats.num_captured_steps < stats.num_decode_steps
    assert stats.kv_cache_usage == 0.0


def test_rows_draft_as_many_as_their_requests_allow(pair: tuple[Path, Path]) -> None:
    """0, 1, 3 and 5 drafts in one captured step: the texts are the plain ones."""
    target, draft = pair
    ids = prompts(8, seed=4)
    expected = texts(make_llm(target, device="cpu"), ids, GREEDY)
    llm = with_captured_steps(make_llm(target, drafting(draft, 5)))
    wanted = [
        SamplingParams(
            temperature=0, max_tokens=24, ignore_eos=True, speculation={"num_speculative_tokens": (0, 1, 3, 5)[i % 4]}
        )
        for i in range(8)
    ]
    outputs = generate(llm, ids, wanted)
    assert [list(output.outputs[0].token_ids) for output in outputs] == expected
    stats = llm._engine.stats()
    assert stats.num_captured_steps == stats.num_decode_steps > 0
    lengths = [output.metrics.speculative_decoding.num_accepted_tokens_per_pos for output in outputs]
    assert [len(length) <= (0, 1, 3, 5)[i % 4] for i, length in enumerate(lengths)] == [True] * 8
    assert sum(map(len, lengths)) > 0


def forms_run(llm: LLM) -> list[Form]:
    """The forms of its steps from now on."""
    graphs, found = worker_of(llm).captured._graphs, []  # type: ignore[union-attr]
    run = graphs.run
    graphs.run = lambda form: (found.append(form), run(form))[1]  # type: ignore[assignment,func-returns-value]
    return found


@pytest.mark.parametrize("heat", [0.0, 0.9])
def test_rows_that_do_not_draft_have_one_place_and_the_texts_are_the_same(pair: tuple[Path, Path], heat: float) -> None:
    """Who drafts changes between steps, so rows change places while steps run ahead; requests come and go."""
    target, draft = pair
    ids = prompts(10, seed=6)

    def wanted(counts: tuple[int, ...]) -> list[SamplingParams]:
        return [
            SamplingParams(
                temperature=heat if i % 2 else 0.0, seed=i, max_tokens=14 + 3 * i, ignore_eos=True,
                speculation={"num_speculative_tokens": counts[i % len(counts)]},
            )
            for i in range(10)
        ]  # fmt: skip

    def found(counts: tuple[int, ...], split_from: int) -> tuple[list[list[int]], list[Form]]:
        llm = with_captured_steps(make_llm(target, drafting(draft, 4)), k=4, split_from=split_from)
        forms = forms_run(llm)
        return texts(llm, ids, wanted(counts)), forms

    some, forms = found((0, 4, 0, 3, 0), split_from=2)
    every, whole_forms = found((0, 4, 0, 3, 0), split_from=99)
    assert some == every
    assert any(form.drafting < form.size for form in forms)
    assert all(form.drafting == form.size for form in whole_forms)
    assert sum(form.num_tokens for form in forms) < 0.9 * sum(form.num_tokens for form in whole_forms)


def test_p16_padding_rows_and_unreserved_places_touch_no_block(pair: tuple[Path, Path]) -> None:
    """Three rows run padded to four; the blocks that a finished request left in the prefix cache keep their bits."""
    target, draft = pair
    llm = with_captured_steps(make_llm(target, drafting(draft, 5)))
    first = prompts(1, seed=9, low=40, high=41)
    texts(llm, first, GREEDY)
    worker = worker_of(llm)
    assert worker.draft is not None
    published = [b for b, block in enumerate(llm._engine._scheduler.blocks._blocks) if block.key is not None]
    assert len(published) >= 10
    layers = [*worker.target.pool.layers, *worker.draft.pool.layers]
    before = [layer[published].clone() for layer in layers]
    texts(llm, prompts(3, seed=10, low=1, high=6), SamplingParams(temperature=0, max_tokens=9, ignore_eos=True))
    assert all((layer[published] == kept).all() for layer, kept in zip(layers, before, strict=True))


def test_p31_nan_ends_its_own_request_and_no_other(pair: tuple[Path, Path]) -> None:
    llm = with_captured_steps(make_llm(pair[0]), k=0)
    for seed in range(50):
        ids = prompts(3, seed=seed, low=3, high=6)
        expected = texts(llm, ids, GREEDY)
        poisoned = expected[1][4]  # a token that the second text reaches and the others do not
        if poisoned not in (*expected[0], *expected[2], *ids[0], *ids[1], *ids[2]):
            break
    else:
        raise AssertionError("no three texts without a common token")
    llm._engine.reset_prefix_cache()
    worker_of(llm).target.model.embedding[poisoned] = float("nan")
    outputs = [output.outputs[0] for output in generate(llm, ids, GREEDY)]
    assert [list(outputs[i].token_ids) for i in (0, 2)] == [expected[0], expected[2]]
    assert (outputs[1].finish_reason, list(outputs[1].token_ids)) == ("error", expected[1][:5])
    assert llm._engine.stats().kv_cache_usage == 0.0
    assert all(layer.isfinite().all() for layer in worker_of(llm).target.pool.layers)


def test_p31_a_draft_that_gives_nan_is_given_up_and_the_text_is_right(pair: tuple[Path, Path]) -> None:
    target, draft = pair
    llm = with_captured_steps(make_llm(target, drafting(draft, 3)))
    ids = prompts(4, seed=2)
    expected = texts(llm, ids, GREEDY)
    llm._engine.reset_prefix_cache()
    poisoned = worker_of(llm).draft
    assert poisoned is not None
    poisoned.model.embedding[expected[1][4]] = float("nan")
    assert texts(llm, ids, GREEDY) == expected
    assert llm._engine.stats().draft_failures > 0


def test_eager_passes_use_the_decode_kernels_only_for_lengths_that_captured_steps_have(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draft that catches up on five tokens compiled a program of its own for five: 0.6 s while requests wait."""
    target, draft = pair
    llm = with_captured_steps(make_llm(target, drafting(draft, 2)), k=2)
    worker = worker_of(llm)
    seen: dict[str, set[tuple[int, bool]]] = {"target": set(), "draft": set()}
    for name, runner in (("target", worker.target), ("draft", worker.draft)):
        assert runner is not None
        forward = runner.forward_paged

        def watched(batch: PagedBatch, forward: Any = forward, name: str = name) -> Tensor:
            seen[name].add((batch.max_query_len, batch.query_starts is None))
            return forward(batch)

        monkeypatch.setattr(runner, "forward_paged", watched)
        for length in range(1, 10):
            spans = [Span([1, 2, 3], 0, list(range(length)), num_logits=1) for _ in range(2)]
            runner.forward(build(spans, 4).to(runner.device))
    assert seen["target"] == {(length, length <= 3) for length in range(1, 10)}
    assert seen["draft"] == {(length, length <= 2) for length in range(1, 10)}


def test_a_trial_computes_one_layer_of_each_kind(pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kernel is launched: the first layer adds nothing up, and layers may differ in windows and formats."""
    llm = with_captured_steps(make_llm(pair[0]), k=0)
    runner, computed, compute = worker_of(llm).target, [], fused._layer

    def watched(layer: DecoderLayer, *rest: Any) -> Product:
        computed.append(layer)
        return compute(layer, *rest)

    monkeypatch.setattr(fused, "_layer", watched)
    layers = runner.model.layers
    pool = runner.pool.layers
    monkeypatch.setattr(runner.model, "layers", [layers[0], layers[1], layers[1], layers[0]])
    monkeypatch.setattr(runner.model, "kv_scales", torch.tensor([[1.0, 1.0]] * 3 + [[0.5, 1.0]]))
    monkeypatch.setattr(runner.pool, "layers", [pool[0], pool[1], pool[1], pool[0]])
    batch = build([Span([1], 0, [5], num_logits=1)], 4).to(runner.device)
    with runner.few_layers():
        runner.forward(batch)
    assert computed == [layers[0], layers[1], layers[0]]
    runner.forward(batch)
    assert len(computed) == 3 + 4
