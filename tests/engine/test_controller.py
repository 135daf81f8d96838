"""The controller on simulated machines: never slower, quick to follow, fair to mixed batches."""

from __future__ import annotations

import copy
import logging
import random

import pytest
from engine.speculation_simulator import (
    DRAFT_COUNTS,
    Machine,
    SimulatedRequest,
    cpu_costs,
    gpu_costs,
    make_requests,
    run_adaptive,
    run_fixed,
    steady,
)

from paceline.engine.controller import SpeculationController
from paceline.engine.cost_fit import split_by_rows
from paceline.engine.curves import Curve
from paceline.engine.goodput import DraftingRow, best_ragged
from paceline.engine.step_costs import PaddedCosts, RaggedCosts, StepCosts

FIXED = (0, 1, 2, 3, 5, 7)


def costs_of(machine: str) -> StepCosts:
    return gpu_costs() if machine == "gpu" else cpu_costs()


def adaptive(machine: str, requests: list[SimulatedRequest], steps: int, seed: int = 1) -> Machine:
    simulated = Machine(costs_of(machine), random.Random(seed))
    return run_adaptive(simulated, SpeculationController(costs_of(machine), 7), requests, steps)


@pytest.mark.parametrize("rate", [0.78, 0.5, 0.2])
@pytest.mark.parametrize(("machine", "batch"), [
    ("gpu", 1), ("gpu", 2), ("gpu", 4), ("gpu", 8), ("gpu", 16), ("gpu", 32), ("gpu", 64), ("gpu", 128),
    ("cpu", 1), ("cpu", 4), ("cpu", 16), ("cpu", 32),
])  # fmt: skip
def test_p33_as_fast_as_the_best_fixed_k_and_never_slower_than_plain(machine: str, batch: int, rate: float) -> None:
    """From the first step on, with nothing known of the draft."""
    fixed = {k: run_fixed(costs_of(machine), make_requests(batch, steady(rate)), k, 1).rate for k in FIXED}
    found = adaptive(machine, make_requests(batch, steady(rate)), 300).rate
    assert found >= 0.98 * max(fixed.values())
    assert found >= 0.98 * fixed[0]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("batch", [1, 8, 32, 64, 128])
def test_a_table_measured_with_some_noise_costs_little(batch: int, seed: int) -> None:
    """Each cell off by up to 3 %: what only seems worse is tried, what only seems better is found out."""
    rng = random.Random(seed)
    believed = gpu_costs()
    believed.table = [[value * rng.uniform(0.97, 1.03) for value in row] for row in believed.table]
    for rate in (0.78, 0.5, 0.2):
        simulated = Machine(gpu_costs(), random.Random(seed))
        controller = SpeculationController(copy.deepcopy(believed), 7)
        run_adaptive(simulated, controller, make_requests(batch, steady(rate)), 200)
        best = max(run_fixed(gpu_costs(), make_requests(batch, steady(rate)), k, 1).rate for k in FIXED)
        assert simulated.rate >= 0.98 * best


@pytest.mark.parametrize(("machine", "batch"), [("gpu", 1), ("gpu", 24), ("cpu", 1), ("cpu", 6)])
def test_p32_a_useless_draft_is_given_up_and_said_so(
    machine: str, batch: int, caplog: pytest.LogCaptureFixture
) -> None:
    costs = costs_of(machine)
    controller = SpeculationController(costs, 7)
    simulated = Machine(costs_of(machine), random.Random(3))
    with caplog.at_level(logging.WARNING, "paceline"):
        run_adaptive(simulated, controller, make_requests(batch, steady(0.0)), 2000)
    plain = run_fixed(costs_of(machine), make_requests(batch, steady(0.0)), 0, 1).rate
    assert simulated.rate >= 0.98 * plain
    assert controller.is_resting
    assert controller.reason == "acceptance"
    assert controller.counts.rest_steps["acceptance"] > 1200
    assert controller.counts.num_probes >= 1
    assert sum("Check that the draft belongs to this model" in message for message in caplog.messages) == 1


def test_p33_a_load_that_swings_is_followed_at_once() -> None:
    for machine, most in (("gpu", 128), ("cpu", 32)):
        controller, simulated = SpeculationController(costs_of(machine), 7), Machine(costs_of(machine))
        one, others = make_requests(1, steady(0.78)), make_requests(most - 1, steady(0.78), first=10)
        run_adaptive(simulated, controller, one, 60)
        alone = max(simulated.history[-1])
        run_adaptive(simulated, controller, one + others, 60)
        crowded = [max(counts) for counts in simulated.history[-60:]]
        run_adaptive(simulated, controller, one, 60)
        alone_again = [max(counts) for counts in simulated.history[-40:]]
        assert alone >= 2
        assert max(crowded[20:]) <= 1
        assert min(alone_again) >= 2


@pytest.mark.parametrize(("machine", "batch"), [("gpu", 1), ("gpu", 16), ("gpu", 128), ("cpu", 1), ("cpu", 8)])
def test_a_collapse_of_acceptance_is_followed_within_20_steps(machine: str, batch: int) -> None:
    for seed in range(4):
        controller = SpeculationController(costs_of(machine), 7)
        simulated, requests = Machine(costs_of(machine), random.Random(seed)), make_requests(batch, steady(0.8))
        run_adaptive(simulated, controller, requests, 100)
        before = [sum(counts) / batch for counts in simulated.history[-20:]]
        for request in requests:
            request.law = steady(0.02)
        run_adaptive(simulated, controller, requests, 40)
        after = [sum(counts) / batch for counts in simulated.history[-20:]]
        assert min(before) >= 0.9
        assert max(after) <= 1.0 if before[-1] > 1.0 else max(after) == 0.0


def test_a_draft_that_is_of_use_again_is_noticed() -> None:
    for machine in ("gpu", "cpu"):
        controller, simulated = SpeculationController(costs_of(machine), 7), Machine(costs_of(machine))
        requests = make_requests(2, steady(0.0))
        run_adaptive(simulated, controller, requests, 1000)
        assert controller.is_resting or sum(simulated.history[-1]) <= 2
        for request in requests:
            request.law = steady(0.85)
        run_adaptive(simulated, controller, requests, 1700)
        assert not controller.is_resting
        assert min(simulated.history[-1]) >= 1


@pytest.mark.parametrize("batch", [2, 4, 8])
def test_a_mixed_batch_beats_every_fixed_k(batch: int) -> None:
    """Half draft well, half badly, and each draft that is left out saves work."""

    def mixed() -> list[SimulatedRequest]:
        return make_requests(batch // 2, steady(0.9)) + make_requests(batch // 2, steady(0.1), first=100)

    best = max(run_fixed(cpu_costs(), mixed(), k, 1).rate for k in range(8))
    simulated = adaptive("cpu", mixed(), 300)
    assert simulated.rate >= 1.05 * best
    good = [sum(counts[: batch // 2]) for counts in simulated.history[-100:]]
    bad = [sum(counts[batch // 2 :]) for counts in simulated.history[-100:]]
    assert sum(good) >= 100 * batch // 2 * 1.5
    assert sum(bad) <= 0.1 * sum(good)  # probes


def test_the_choice_is_the_best_of_all_sets_of_drafts() -> None:
    """Against every combination of counts, on small batches with random costs and probabilities."""
    rng = random.Random(5)
    for _ in range(60):
        costs = RaggedCosts(
            Curve.through([(size, rng.uniform(0.5, 1.5) + 0.2 * size * rng.random()) for size in range(1, 13)]),
            Curve.through([(size, rng.uniform(0.05, 0.2) + 0.02 * size) for size in range(1, 9)]),
            padding_seconds=rng.choice([0.0, 0.1]),
        )
        rows = [DraftingRow(i, 3) for i in range(3)]
        survivals = [[rate, rate**2, rate**3] for rate in (rng.random() for _ in rows)]
        rates = []
        for a in range(4):
            for b in range(4):
                for c in range(4):
                    active = [sum(k > j for k in (a, b, c)) for j in range(max(a, b, c))]
                    tokens = 3 + sum(sum(s[:k]) for s, k in zip(survivals, (a, b, c), strict=True))
                    rates.append(tokens / costs.seconds(3, active, 0.0))
        assert best_ragged(rows, survivals, costs).rate >= 0.97 * max(rates)


def test_decisions_are_a_function_of_their_inputs() -> None:
    histories = [adaptive("cpu", make_requests(6, steady(0.6)), 80, seed=9).history for _ in range(2)]
    assert histories[0] == histories[1]


def test_live_timings_correct_what_was_measured_wrongly() -> None:
    """A captured step that costs twice as much as was measured is found out."""
    true, believed = gpu_costs(), gpu_costs()
    size = true.sizes.index(64)
    believed.table[size][DRAFT_COUNTS.index(7)] *= 0.5
    controller = SpeculationController(believed, 7)
    simulated = Machine(true, random.Random(0))
    run_adaptive(simulated, controller, make_requests(64, steady(0.78)), 400)
    assert max(simulated.history[0]) == 7
    assert max(simulated.history[-1]) <= 5


def test_a_machine_that_is_slower_for_everything_changes_no_decision() -> None:
    slow, table = cpu_costs(), cpu_costs()
    for step in range(1500):
        counts = [(1, 2)[step % 2]] * 4
        active = [4] * counts[0]
        slow.refresh(counts, 0.0, 2.0 * table.drafting(active), 2.0 * table.verifying(4, sum(active), 0.0))

    def gain(costs: RaggedCosts) -> float:
        return costs.seconds(4, [4] * 5, 0.0) / costs.seconds(4, [4], 0.0)

    assert gain(slow) == pytest.approx(gain(table), rel=0.1)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("row_ms", [0.0, 1.5, 4.0])
def test_rows_and_tokens_are_told_apart_in_noisy_timings(row_ms: float, seed: int) -> None:
    """The grid of a CPU's calibration, each step up to 6 % too long: steps that were not on it are still foreseen."""
    rng = random.Random(seed)
    products = Curve([1, 8, 32, 192], [45.0, 60.0, 110.0, 450.0])

    def true(rows: int, k: int) -> float:
        return products(rows * (k + 1)) + rows * row_ms

    grid = [(rows, k) for rows in (1, 2, 4, 8, 16, 32) for k in (0, 1, 5)]
    row_seconds, curve = split_by_rows({cell: true(*cell) * rng.uniform(1.0, 1.06) for cell in grid})
    for rows, k in [(1, 3), (4, 2), (8, 2), (8, 3), (16, 2), (24, 1)]:
        assert curve(rows * (k + 1)) + rows * row_seconds == pytest.approx(true(rows, k), rel=0.13)


def test_padded_costs_never_fall_and_round_up() -> None:
    costs = PaddedCosts([1, 4], [0, 2], [[2.0, 1.0], [1.0, 3.0]])
    assert costs.table == [[1.25, 1.5], [1.25, 3.0]] or all(row == sorted(row) for row in costs.table)
    assert costs.seconds(2, 1, 0.0) == costs.table[1][1]


def test_rows_shorter_than_the_measured_ones_cost_less_each_and_never_less_than_nothing() -> None:
    """What a row costs beside its tokens is mostly its context; left too high it makes further drafts look cheap."""
    costs = RaggedCosts(Curve([1, 64], [10e-3, 100e-3]), Curve([1, 64], [1e-3, 5e-3]), row_seconds=2e-3, context=128.0)
    costs.target_position = 15e-6
    measured, short, long = (costs.verifying(8, 0, 8.0 * positions) for positions in (128, 48, 208))
    assert measured - short == pytest.approx(8 * 80 * 15e-6)
    assert long - measured == pytest.approx(8 * 80 * 15e-6)
    costs.target_position = 1.0  # a bad measurement
    assert costs.verifying(8, 0, 0.0) == pytest.approx(costs.verify(8))
