"""What a draft that fell behind takes to catch up, as it is measured before captured steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig, SpeculativeConfig
from paceline.engine.calibration import measure_costs
from paceline.engine.step_costs import PaddedCosts
from paceline.plan import StepPlan, StepResult, StepShapes, StepTimings
from paceline.speculative.catch_up import lags
from paceline.step_forms import StepForms

STEP, LAUNCHES, TOKEN = 20e-3, 12e-3, 5e-6


class Card:
    """Its clock stands still but for steps, and the draft's own pass in which it catches up."""

    block_size, num_blocks = 16, 1 << 16

    def __init__(self) -> None:
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def submit(self, plan: StepPlan) -> None:
        self._plan = plan
        late = sum(len(row.draft_chunk) for row in plan.rows if lags(row))
        assert late <= 8192 + 2 * len(plan.rows)
        self.now += STEP + (max(LAUNCHES, TOKEN * late) if late else 0.0)

    def collect(self) -> StepResult:
        return StepResult(step_id=self._plan.step_id, rows=[], timings=StepTimings(verify=STEP), captured=True)

    def can_run_ahead(self) -> bool:
        return False

    def describe(self) -> dict[str, str]:
        return {}

    def shapes(self) -> StepShapes:
        return StepShapes(forms=StepForms.of([1, 4, 32, 128], [0, 1, 2]))

    def check_health(self) -> None: ...

    def shutdown(self) -> None: ...


@pytest.mark.parametrize("budget", [8192, 2048, 256])
def test_many_tokens_cost_more_than_the_launches_of_a_pass(budget: int) -> None:
    """It was measured on a thousand tokens, which take no longer than 32: so five thousand seemed to be free, and a
    batch at rest had its drafts read all prompts for a few steps of news."""
    card = Card()
    config = EngineConfig(
        model=ModelConfig(path=Path("target"), name="target", max_model_len=2048),
        speculative=SpeculativeConfig(
            method="draft_model",
            num_speculative_tokens=2,
            draft=ModelConfig(path=Path("draft"), name="draft", max_model_len=2048),
        ),
        cache=CacheConfig(),
        scheduler=SchedulerConfig(max_num_seqs=128, max_num_batched_tokens=budget),
    )
    costs = measure_costs(config, card, clock=card.clock)
    assert isinstance(costs, PaddedCosts)
    assert costs.catch_up(32) == pytest.approx(LAUNCHES, rel=0.01)
    if budget == 8192:
        assert costs.catch_up(8192) == pytest.approx(LAUNCHES + 0.7 * TOKEN * 8192, rel=0.05)
    assert costs.catch_up(8192) >= costs.catch_up(32)
