"""The steps that are run to measure memory: as large as any the scheduler may ask for, and real."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from model.pairs import make_pair

from paceline.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig, SpeculativeConfig
from paceline.plan import StepPlan
from paceline.worker.profile import MIN_BLOCKS, largest_steps, short_steps
from paceline.worker.worker import Worker


def config_of(target: Path, draft: Path | None, *, draft_len: int = 64, **scheduler: Any) -> EngineConfig:
    speculative = None
    if draft is not None:
        model = ModelConfig(path=draft, name="draft", max_model_len=draft_len)
        speculative = SpeculativeConfig(method="draft_model", num_speculative_tokens=3, draft=model)
    return EngineConfig(
        model=ModelConfig(path=target, name="target", max_model_len=64),
        speculative=speculative,
        cache=CacheConfig(block_size=4, num_blocks=40),
        scheduler=SchedulerConfig(**{"max_num_seqs": 6, "max_num_batched_tokens": 100, **scheduler}),
    )


def target_tokens(plan: StepPlan) -> int:
    return sum(len(row.token_ids) + row.num_draft_tokens for row in plan.rows)


@pytest.mark.parametrize("with_draft", [True, False])
def test_p35_the_largest_steps_fill_what_a_step_may_take(tmp_path: Path, with_draft: bool) -> None:
    target, draft = make_pair(tmp_path)
    config = config_of(target, draft if with_draft else None)
    prefill, decode = largest_steps(config)
    assert target_tokens(prefill) == 100
    assert len(decode.rows) == 6
    assert decode.num_speculative_tokens == (3 if with_draft else 0)
    worker = Worker(config)
    for runner in filter(None, (worker.target, worker.draft)):
        runner.allocate_kv(MIN_BLOCKS, 4)
    for plan in (prefill, decode):
        result = worker.decoder.run(plan)
        assert [row.error for row in result.rows] == [None] * len(plan.rows)
    assert all(row.num_drafted == 3 * with_draft for row in result.rows)


def test_drafts_fit_in_the_budget_of_a_step(tmp_path: Path) -> None:
    """With 10 tokens for 6 sequences only some can draft: the plan stays within what the scheduler could make."""
    target, draft = make_pair(tmp_path)
    config = config_of(target, draft, max_num_batched_tokens=10, draft_len=16)
    prefill, decode = largest_steps(config)
    assert target_tokens(prefill) <= 10
    assert target_tokens(decode) <= 10


@pytest.mark.parametrize(
    "scheduler",
    [{}, {"max_num_batched_tokens": 10}, {"max_num_seqs": 1}, {"max_num_batched_tokens": 1, "max_num_seqs": 1}],
)
def test_short_steps_read_rows_of_different_lengths_within_the_budget(
    tmp_path: Path, scheduler: dict[str, int]
) -> None:
    """They compile the attention of short chunks, which took half a second of a request's time each at first use."""
    target, draft = make_pair(tmp_path)
    config = config_of(target, draft, **scheduler)
    worker = Worker(config)
    for runner in filter(None, (worker.target, worker.draft)):
        runner.allocate_kv(MIN_BLOCKS, 4)
    for plan in short_steps(config):
        assert target_tokens(plan) > 0
        assert all(row.draft_chunk for row in plan.rows)
        assert [row.error for row in worker.decoder.run(plan).rows] == [None] * len(plan.rows)
    if not scheduler:
        lengths = [[len(row.token_ids) for row in plan.rows] for plan in short_steps(config)]
        assert lengths == [[4, 3], [40, 39]]
