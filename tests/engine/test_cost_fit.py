"""A CPU's table of costs: what was measured is what it says, and what one step shows moves no other."""

from __future__ import annotations

import random

import pytest
from engine.speculation_simulator import Machine, make_requests, native_costs, run_adaptive, run_fixed, steady
from hypothesis import given
from hypothesis import strategies as st

from paceline.engine.controller import SpeculationController
from paceline.engine.cost_fit import departures, split_by_rows
from paceline.engine.curves import Curve, Departures
from paceline.engine.step_costs import RaggedCosts

GRID = [(rows, k) for rows in (1, 2, 4, 8, 16, 32) for k in (0, 1, 7) if rows * (k + 1) <= 64 or k < 2]


def fitted(verify: dict[tuple[int, int], float], draft: Curve) -> RaggedCosts:
    row_seconds, curve = split_by_rows(verify)
    return RaggedCosts(curve, draft, row_seconds, departures=departures(verify, row_seconds, curve))


def uneven_costs() -> RaggedCosts:
    """Plain steps of two to sixteen rows take less than as many tokens of fewer rows, as the C++ forward's did."""
    costs = native_costs()
    for line, rows in enumerate(costs.departures.rows):
        if 2 <= rows <= 16:
            costs.departures.factors[line][0] = 0.86
    return costs


def test_measured_steps_are_foreseen_though_rows_and_tokens_do_not_add_up() -> None:
    rng = random.Random(2)
    verify = {(rows, k): (10.0 + 2.0 * rows * (k + 1)) * (1.0 + 0.03 * k) * rng.uniform(0.9, 1.0) for rows, k in GRID}
    costs = fitted(verify, Curve([1.0], [1.0]))
    for (rows, k), seconds in verify.items():
        assert costs.verifying(rows, rows * k, 0.0) == pytest.approx(seconds, rel=1e-6)


@given(rows=st.integers(1, 200), more=st.integers(0, 1000), seed=st.integers(0, 9))
def test_a_factor_lies_between_those_that_were_measured(rows: int, more: int, seed: int) -> None:
    rng = random.Random(seed)
    verify = {cell: (10.0 + cell[0] * (cell[1] + 1)) * rng.uniform(0.8, 1.2) for cell in GRID}
    found = departures(verify, *split_by_rows(verify))
    factors = [factor for line in found.factors for factor in line]
    assert min(factors) * 0.999 <= found.factor(rows, rows + more) <= max(factors) * 1.001


def test_what_a_step_shows_moves_no_step_of_other_rows() -> None:
    """Eight rows with a draft each have as many tokens as sixteen without: one slow, the other looked slow too."""
    costs = native_costs()
    before = costs.verifying(16, 0, 0.0)
    for _ in range(100):
        costs.refresh([1] * 8, 0.0, costs.drafting((8,)), 1.2 * costs.verifying(8, 8, 0.0))
        costs.refresh([0] * 8, 0.0, 0.0, costs.verifying(8, 0, 0.0))
    assert costs.verifying(16, 0, 0.0) == before
    assert costs.verifying(8, 8, 0.0) / costs.verifying(8, 0, 0.0) > 1.1 * native_costs().verifying(8, 8, 0.0) / (
        native_costs().verifying(8, 0, 0.0)
    )


def test_live_steps_keep_more_tokens_from_taking_less_time() -> None:
    costs = native_costs()
    for _ in range(60):
        costs.refresh([0] * 8, 0.0, 0.0, 60e-3)
        costs.refresh([0] * 4, 0.0, 0.0, costs.verifying(4, 0, 0.0))
    times = [costs.verifying(8, 8 * k, 0.0) for k in (0, 1, 2, 3, 5, 7)]
    assert times[0] > 1.2 * native_costs().verifying(8, 0, 0.0)
    assert times == sorted(times)


@pytest.mark.parametrize("rate", [0.78, 0.5, 0.2])
def test_p33_plain_steps_that_are_cheaper_than_their_tokens_are_taken(rate: float) -> None:
    """Eight sequences at 0.78 drafted one each and were at 0.905 of plain decoding, on a table that was only a sum."""
    true = uneven_costs()
    for rows in (8, 16):
        best = max(run_fixed(true, make_requests(rows, steady(rate)), k, 1).rate for k in range(6))
        for seed in range(3):
            rng = random.Random(seed)
            verify = {(n, k): true.verifying(n, n * k, 0.0) * rng.uniform(1.0, 1.04) for n, k in GRID}
            machine = Machine(true, rng, jitter=0.04)
            controller = SpeculationController(fitted(verify, true.draft), 5)
            run_adaptive(machine, controller, make_requests(rows, steady(rate)), 150, most=5)
            assert machine.rate >= 0.98 * best


def test_without_measured_steps_nothing_departs() -> None:
    none = Departures.none()
    assert {none.factor(rows, tokens) for rows in (1, 3, 300) for tokens in (300, 900)} == {1.0}
