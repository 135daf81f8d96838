"""Greedy drafts from one call of the C++ forward against one call a draft: the same tokens, the same pool."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from model.tiny import make_tiny

from paceline.config import ModelConfig
from paceline.kernels.cpu_memory import WeightMemory
from paceline.kernels.cpu_program import NoCompilerError, cpu_program
from paceline.layers.sampling import SamplingBatch
from paceline.models.draft_head import COUNTS_FILE
from paceline.plan import RowPlan, SamplingPlan, StepPlan
from paceline.runner.model_runner import ModelRunner
from paceline.speculative.proposers import DraftModelProposer
from paceline.speculative.proposers.base import emitting_rows
from paceline.speculative.rejection import Proposal

BLOCK_SIZE, VOCAB = 4, 101
GREEDY = SamplingPlan(temperature=0.0)


def _has_compiler() -> bool:
    try:
        cpu_program()
    except NoCompilerError:
        return False
    return True


pytestmark = pytest.mark.skipif(not _has_compiler(), reason="no C++ compiler here")


def load(path: Path, *, one_call: bool, head_size: int | None = None) -> ModelRunner:
    config = ModelConfig(path=path, name="tiny", max_model_len=128, head_size=head_size)
    runner = ModelRunner.load(config)
    runner.allocate_kv(64, BLOCK_SIZE)
    assert runner.drafts_in_one_call
    if not one_call:
        runner.__class__ = OneByOne
    return runner


class OneByOne(ModelRunner):
    drafts_in_one_call = False


def row(seq_id: int, length: int, mark: int, drafts: int, sampling: SamplingPlan = GREEDY, **more: object) -> RowPlan:
    """A row of `length` committed tokens, of which the draft has `mark`."""
    tokens = [3 + (7 * seq_id + 5 * place) % 90 for place in range(length)]
    start = max(0, min(mark, length - 2))
    fields = {
        "seq_id": seq_id, "block_table": [1 + 8 * seq_id + place for place in range(8)], "start": length - 1,
        "token_ids": tokens[-1:], "draft_start": start, "draft_chunk": tokens[start:],
        "num_draft_computed_tokens": mark, "num_draft_tokens": drafts, "sampling": sampling,
    }  # fmt: skip
    return RowPlan(**{**fields, **more})  # type: ignore[arg-type]


def plan(*rows: RowPlan) -> StepPlan:
    return StepPlan(step_id=1, rows=list(rows))


def propose(runner: ModelRunner, step: StepPlan) -> Proposal:
    proposer = DraftModelProposer(runner, block_size=BLOCK_SIZE, vocab_size=VOCAB)
    return proposer.propose(step, SamplingBatch(emitting_rows(step), torch.device("cpu")))


STEPS = (
    plan(row(0, 9, 0, 5)),
    plan(row(0, 12, 9, 5), row(1, 5, 0, 2), row(2, 20, 0, 0, emits=False), row(3, 4, 0, 7)),
    plan(row(1, 6, 5, 1), row(2, 21, 20, 4), row(0, 14, 12, 3, text_drafts=[8, 9, 10], draft_chunk=[])),
    plan(row(3, 5, 4, 2), row(1, 9, 6, 2, SamplingPlan(seed=4), text_drafts=[50, 60], draft_chunk=[])),
)


@pytest.mark.parametrize("head_size", [None, 37])
@pytest.mark.parametrize("kind", ["smollm2", "qwen2_sliding"])
def test_the_same_drafts_and_the_same_pool(tmp_path: Path, kind: str, head_size: int | None) -> None:
    path = make_tiny(kind, tmp_path)
    np.save(path / COUNTS_FILE, np.arange(VOCAB) % 7)
    together, alone = (load(path, one_call=one_call, head_size=head_size) for one_call in (True, False))
    for step in STEPS:
        found, wanted = propose(together, step), propose(alone, step)
        assert torch.equal(found.draft_token_ids, wanted.draft_token_ids)
        assert found.num_drafted == wanted.num_drafted
        assert found.failed == wanted.failed == frozenset()
    for ours, theirs in zip(together.pool.layers, alone.pool.layers, strict=True):
        assert torch.equal(ours[1:], theirs[1:])


@pytest.mark.parametrize("poisoned", ["chunk", "draft"])
def test_p31_a_bad_row_of_the_draft_proposes_nothing_and_says_so(tmp_path: Path, poisoned: str) -> None:
    """A token with NaN in what a row reads, or among what it drafts; its neighbours draft as ever."""
    path = make_tiny("smollm2", tmp_path, tie_word_embeddings=False)
    healthy, runner = load(path, one_call=True), load(path, one_call=True)
    step = plan(row(0, 9, 0, 4), row(1, 5, 0, 4), row(2, 7, 0, 2))
    wanted = propose(healthy, step)
    mine, others = (set(wanted.draft_token_ids[index].tolist()) for index in (1, 0))
    token = step.rows[1].draft_chunk[0] if poisoned == "chunk" else wanted.draft_token_ids[1, 0].item()
    assert poisoned == "chunk" or (token in mine and token not in others)
    runner.model.embedding[token] = float("nan")
    found = propose(runner, step)
    assert 1 in found.failed
    assert found.num_drafted[1] == 0
    assert (found.draft_token_ids[1] == -1).all()
    for index in {0, 2} - found.failed:
        assert torch.equal(found.draft_token_ids[index], wanted.draft_token_ids[index])


@pytest.mark.parametrize("sampling", [
    SamplingPlan(seed=3), SamplingPlan(temperature=0.0, logit_bias=((5, 90.0),)),
    SamplingPlan(temperature=0.0, min_tokens=9, stop_token_ids=(2,)),
])  # fmt: skip
def test_what_is_no_argmax_of_the_models_logits_is_drawn_draft_by_draft(tmp_path: Path, sampling: SamplingPlan) -> None:
    path, step = make_tiny("smollm2", tmp_path), plan(row(0, 9, 0, 3), row(1, 9, 0, 3, sampling))
    runner, alone = load(path, one_call=True), load(path, one_call=False)
    runner.draft_greedily = None  # type: ignore[assignment, method-assign]
    found, wanted = propose(runner, step), propose(alone, step)
    assert torch.equal(found.draft_token_ids, wanted.draft_token_ids)


def test_weights_are_kept_as_they_are_and_begin_with_a_line() -> None:
    memory = WeightMemory()
    tensors = [torch.randn(size) for size in (3, 1000, 5_000_000, 17, 4_100_000)]
    kept = [memory.keep(tensor) for tensor in [*tensors, torch.randn(4, 6).t(), torch.randn(33).bfloat16()]]
    del memory
    for tensor, copy in zip(tensors, kept, strict=False):
        assert torch.equal(copy, tensor)
    assert all(copy.is_contiguous() and copy.data_ptr() % 64 == 0 for copy in kept)
    assert kept[2].data_ptr() % (2 << 20) == 0
    assert kept[-1].dtype == torch.bfloat16
