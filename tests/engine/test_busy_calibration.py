"""Costs of eager steps, measured on a machine that is slowed down for seconds at a time."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from paceline.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig, SpeculativeConfig
from paceline.engine.calibration import measure_costs
from paceline.engine.step_costs import RaggedCosts
from paceline.plan import StepPlan, StepResult, StepShapes, StepTimings


class Processor:
    """A step of n tokens takes 10 ms or 2 ms a token, whichever is more, and 1 ms more a row that draws; a draft's pass
    0.5 ms. For `share` of the time, in spells of a second, all takes twice as long."""

    block_size, num_blocks = 16, 1 << 12

    def __init__(self, share: float, seed: int) -> None:
        self.now, self._share, self._rng = 0.0, share, random.Random(seed)
        self._slow: dict[int, bool] = {}

    def clock(self) -> float:
        return self.now

    def submit(self, plan: StepPlan) -> None:
        tokens = sum(len(row.token_ids) + row.num_draft_tokens for row in plan.rows)
        is_slow = self._slow.setdefault(int(self.now), self._rng.random() < self._share)
        factor = (2.0 if is_slow else 1.0) * self._rng.uniform(1.0, 1.1)
        drawn = sum(row.sampling.temperature > 0 for row in plan.rows)
        drafts = max(row.num_draft_tokens for row in plan.rows)
        parts = 0.5e-3 * drafts, max(10e-3, 2e-3 * tokens), 1e-3 * drawn
        self._timings = StepTimings(*(factor * part for part in parts))
        self.now += factor * sum(parts)

    def collect(self) -> StepResult:
        return StepResult(step_id=0, rows=[], timings=self._timings)

    def can_run_ahead(self) -> bool:
        return False

    def describe(self) -> dict[str, str]:
        return {}

    def shapes(self) -> StepShapes:
        return StepShapes()

    def check_health(self) -> None: ...

    def shutdown(self) -> None: ...


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_table_of_quiet_and_slow_moments_is_one_of_the_quiet_ones(share: float, seed: int) -> None:
    """Four rows with a draft each seemed to take 33 ms, without drafts 18; 17 and 13 was true. They never drafted."""
    processor = Processor(share, seed)
    config = EngineConfig(
        model=ModelConfig(path=Path("target"), name="target", max_model_len=2048),
        speculative=SpeculativeConfig(
            method="draft_model",
            num_speculative_tokens=5,
            draft=ModelConfig(path=Path("draft"), name="draft", max_model_len=2048),
        ),
        cache=CacheConfig(),
        scheduler=SchedulerConfig(max_num_seqs=16, max_num_batched_tokens=2048),
    )
    costs = measure_costs(config, processor, clock=processor.clock)
    assert processor.now < 40
    assert isinstance(costs, RaggedCosts)
    for rows in (1, 2, 4, 8, 16):
        plain, one = (costs.verifying(rows, rows * k, rows * 128) for k in (0, 1))
        true_plain, true_one = (max(10e-3, 2e-3 * rows * (k + 1)) for k in (0, 1))
        assert plain == pytest.approx(true_plain, rel=0.2)
        assert one / plain == pytest.approx(true_one / true_plain, rel=0.15)
    drawn = costs.of(draws=True)
    assert drawn is not costs
    assert drawn.verifying(8, 0, 8 * 128) - costs.verifying(8, 0, 8 * 128) == pytest.approx(4e-3, abs=1.5e-3)
