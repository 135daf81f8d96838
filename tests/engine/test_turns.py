"""Texts that turn while a GPU serves them: drafts are given up, and taken up again, in time (H200's recorded steps)."""

from __future__ import annotations

import random

import pytest
from engine.speculation_simulator import (
    Machine,
    SimulatedRequest,
    make_requests,
    native_costs,
    recorded_costs,
    run_adaptive,
    split_costs,
    steady,
)

from paceline.engine.acceptance_estimates import AcceptanceEstimates
from paceline.engine.controller import SpeculationController
from paceline.engine.rests import MOST_TEXT_WAIT, MOST_WAIT
from paceline.engine.traffic_watch import TrafficWatch


def turned(batch: int, bad_steps: int, good_steps: int, seed: int) -> tuple[Machine, SpeculationController]:
    """Traffic at 0.7 for a hundred steps, then `batch` requests that begin at 0.02 and turn to 0.8."""
    controller, machine = SpeculationController(recorded_costs(), 7), Machine(recorded_costs(), random.Random(seed))
    before = make_requests(batch, steady(0.7), first=1000)
    run_adaptive(machine, controller, before, 100)
    for request in before:
        controller.forget(request.seq_id)
    requests = make_requests(batch, steady(0.02))
    run_adaptive(machine, controller, requests, bad_steps)
    for request in requests:
        request.law = steady(0.8)
    run_adaptive(machine, controller, requests, good_steps)
    return machine, controller


@pytest.mark.parametrize("batch", [2, 16, 24, 32, 64, 128])
def test_p33_a_collapse_of_all_requests_is_followed_within_20_steps_at_any_batch(batch: int) -> None:
    """Judged together, 32 requests that had turned to 0.02 still drafted 40 steps later."""
    machine, _ = turned(batch, bad_steps=40, good_steps=0, seed=batch)
    late = [max(counts) for counts in machine.history[-20:]]
    assert max(late) <= (1 if batch <= 4 else 0), "at few rows one draft each costs next to nothing"


@pytest.mark.parametrize(
    ("batch", "bad_steps", "within"), [(2, 200, 300), (16, 30, 150), (32, 200, 350), (64, 200, 300)]
)
def test_a_rest_is_not_for_ever(batch: int, bad_steps: int, within: int) -> None:
    """Of sixteen requests at rest one was probed, and spoke for itself alone: they never drafted again."""
    machine, controller = turned(batch, bad_steps, within, seed=1)
    assert not controller.is_resting
    assert min(machine.history[-1]) >= 1


@pytest.mark.parametrize("batch", [32, 64, 128])
@pytest.mark.parametrize("kind", ["alike", "mixed", "uniform"])
def test_p33_a_collapse_is_followed_where_half_of_the_rows_may_draft(batch: int, kind: str) -> None:
    """What was known of each request, over thirty passes, kept the better half drafting for 60 steps."""
    rng = random.Random(2)
    rates = {"alike": [0.8], "mixed": [0.9, 0.1], "uniform": [rng.uniform(0.2, 0.9) for _ in range(batch)]}[kind]
    requests = [SimulatedRequest(index, steady(rates[index % len(rates)])) for index in range(batch)]
    controller, machine = SpeculationController(split_costs(), 7), Machine(split_costs(), random.Random(1))
    run_adaptive(machine, controller, requests, 60)
    for request in requests:
        request.law = steady(0.02)
    run_adaptive(machine, controller, requests, 24)
    assert not any(any(counts) for counts in machine.history[-14:])


def test_rests_for_the_text_are_questioned_more_often_than_those_for_the_load() -> None:
    """A load that changes is seen without a probe; a text is not."""
    for costs, batch, rate, longest in (
        (recorded_costs, 128, 0.4, MOST_TEXT_WAIT),
        (native_costs, 16, 0.8, MOST_WAIT),
    ):
        controller, machine = SpeculationController(costs(), 7), Machine(costs(), random.Random(0))
        run_adaptive(machine, controller, make_requests(batch, steady(rate)), 100)
        assert controller._rest is not None
        assert controller._rest.most_wait == longest


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.8])
def test_traffic_that_stays_as_it_is_raises_no_alarm_and_one_that_turns_does_at_once(rate: float) -> None:
    rng, watch = random.Random(1), TrafficWatch(3)

    def step(chance: float) -> bool:
        for _ in range(32):
            won = rng.random() < chance
            watch.record(2 if won else 1, int(won), expected=rate)
        return watch.end_step() is not None

    assert not any(step(rate) for _ in range(2000))
    assert any(step(abs(rate - 0.5)) for _ in range(4))


def test_pooled_requests_are_what_traffic_is() -> None:
    estimates = AcceptanceEstimates(3)
    for _ in range(100):
        for seq_id, kept in ((1, 3), (2, 0)):
            estimates.record(seq_id, 3, kept)
        estimates.end_step()
    means = [sum(chances) / 2 for chances in zip(estimates.survival(1), estimates.survival(2), strict=True)]
    estimates.pool([1, 2])
    for seq_id in (1, 2, None):
        assert estimates.survival(seq_id) == pytest.approx(means, rel=0.02)
