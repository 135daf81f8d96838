"""Captured steps whose times at start contradict each other: more rows or more drafts never take less."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from paceline.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig, SpeculativeConfig
from paceline.engine.calibration import measure_costs
from paceline.engine.step_costs import PaddedCosts
from paceline.plan import StepPlan, StepResult, StepShapes, StepTimings
from paceline.step_forms import StepForms

SIZES, COUNTS = [1, 2, 4, 6, 8, 12, 16, 32], [0, 1, 2, 3, 5, 7]
RUNS = 4  # of a form, the first of which is not counted


def true_seconds(rows: int, k: int) -> float:
    return (18.0 + 0.9 * k + 0.02 * rows * (k + 1)) * 1e-3


class Card:
    """Slower by a half while the steps `disturbed` run for the first time."""

    block_size, num_blocks = 16, 1 << 16

    def __init__(self, disturbed: tuple[int, int]) -> None:
        self.disturbed = disturbed
        self.seen: Counter[tuple[int, int]] = Counter()

    def submit(self, plan: StepPlan) -> None:
        rows, k = len(plan.rows), max(row.num_draft_tokens for row in plan.rows)
        self.seen[rows, k] += 1
        slower = 1.5 if (rows, k) == self.disturbed and self.seen[rows, k] <= RUNS else 1.0
        self._result = StepResult(
            step_id=plan.step_id, rows=[], timings=StepTimings(verify=slower * true_seconds(rows, k)), captured=True
        )

    def collect(self) -> StepResult:
        return self._result

    def can_run_ahead(self) -> bool:
        return False

    def describe(self) -> dict[str, str]:
        return {}

    def shapes(self) -> StepShapes:
        return StepShapes(forms=StepForms.of(SIZES, COUNTS, split_from=64))

    def check_health(self) -> None: ...

    def shutdown(self) -> None: ...


@pytest.mark.parametrize("disturbed", [(1, 0), (8, 7), (8, 0), (12, 3), (1, 7), (16, 5)])
def test_a_cell_that_was_disturbed_is_measured_again(disturbed: tuple[int, int]) -> None:
    """K = 7 of eight rows was never tried in a whole run, although it was better: it was measured too slow."""
    card = Card(disturbed)
    draft = ModelConfig(path=Path("draft"), name="draft", max_model_len=2048)
    config = EngineConfig(
        model=ModelConfig(path=Path("target"), name="target", max_model_len=2048),
        speculative=SpeculativeConfig(method="draft_model", num_speculative_tokens=7, draft=draft),
        cache=CacheConfig(),
        scheduler=SchedulerConfig(max_num_seqs=32, max_num_batched_tokens=8192),
    )
    costs = measure_costs(config, card)
    assert isinstance(costs, PaddedCosts)
    for line, rows in zip(costs.table, SIZES, strict=True):
        assert line == pytest.approx([true_seconds(rows, k) for k in COUNTS], rel=1e-6)
    untouched = [cell for cell, times in card.seen.items() if times == RUNS]
    assert len(untouched) > len(SIZES) * len(COUNTS) // 2, "a card that holds still is measured once"
