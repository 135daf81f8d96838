"""Half of a batch drafts and the other half does not, where requests differ; in simulation, with an H200's costs."""

from __future__ import annotations

import random

import pytest
from engine.speculation_simulator import (
    DRAFT_COUNTS,
    Law,
    Machine,
    SimulatedRequest,
    make_requests,
    run_adaptive,
    run_fixed,
    split_costs,
    steady,
)

from paceline.engine.controller import SpeculationController

MOST = 7
GOOD, BAD = 0.9, 0.1


def mixed(count: int) -> list[SimulatedRequest]:
    return [SimulatedRequest(index, steady((GOOD, BAD)[index % 2])) for index in range(count)]


def adaptive(requests: list[SimulatedRequest], steps: int, seed: int = 0) -> Machine:
    machine = Machine(split_costs(), rng=random.Random(seed))
    return run_adaptive(machine, SpeculationController(split_costs(), MOST), requests, steps)


def best_fixed(requests: list[SimulatedRequest], steps: int) -> float:
    return max(run_fixed(split_costs(), requests, k, steps).rate for k in DRAFT_COUNTS)


@pytest.mark.parametrize("batch", [32, 64, 128])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_mixed_batch_beats_every_fixed_k(batch: int, seed: int) -> None:
    """From the first step on, what must be learnt included: about the answers of one round."""
    found = adaptive(mixed(batch), 100, seed).rate
    assert found >= 1.05 * best_fixed(mixed(batch), 100)


def test_a_batch_whose_drafts_have_much_to_read_first_is_not_tried_for_news() -> None:
    """At 128 rows and 0.5 no draft pays, and what new ones would have to read costs more than a few steps of news."""
    for lag, least, most in ((60, 0, 0), (0, 4, 12)):
        machine, controller = Machine(split_costs()), SpeculationController(split_costs(), MOST)
        run_adaptive(machine, controller, make_requests(16, steady(0.5)), 60)
        assert any(machine.history[-1])  # 16 rows draft, and so it does not rest
        requests = [SimulatedRequest(1000 + index, steady(0.5), lag=lag) for index in range(128)]
        run_adaptive(machine, controller, requests, 40)
        assert least <= sum(map(any, machine.history[60:])) <= most


@pytest.mark.parametrize("batch", [32, 64, 128])
@pytest.mark.parametrize("rate", [0.78, 0.5, 0.2])
def test_requests_that_are_alike_are_not_taken_for_different_ones(batch: int, rate: float) -> None:
    machine = adaptive(make_requests(batch, steady(rate)), 200)
    assert machine.rate >= 0.98 * best_fixed(make_requests(batch, steady(rate)), 200)
    split = sum(0 < sum(count > 0 for count in counts) < batch for counts in machine.history[20:])
    assert split <= 0.1 * len(machine.history)


def test_requests_that_change_their_parts_are_heard() -> None:
    """The good half turns bad and the bad half good: the new good ones draft before long."""

    def turning(first: float, then: float) -> Law:
        return lambda done: first if done < 400 else then

    requests = [SimulatedRequest(i, turning(*((GOOD, BAD), (BAD, GOOD))[i % 2])) for i in range(64)]
    for request in requests[1::2]:
        request.done = 300  # the slow ones get there at about the same time
    machine = adaptive(requests, 500)
    last = machine.history[-100:]
    drafted = [sum(counts[i] > 0 for counts in last) for i in range(64)]
    assert sum(drafted[1::2]) > 4 * sum(drafted[0::2])


def stream(k: int | None, seed: int, steps: int = 300) -> float:
    """Tokens a second of 64 requests at a time, the next of either kind when one has its 200 tokens."""
    rng = random.Random(seed)
    machine, controller = Machine(split_costs(), rng=rng), SpeculationController(split_costs(), MOST)
    requests, following = mixed(64), 64
    for _ in range(steps):
        if k is None:
            run_adaptive(machine, controller, requests, 1)
        else:
            machine.step(requests, [k] * len(requests))
        for index, request in enumerate(requests):
            if request.done >= 200:
                controller.forget(request.seq_id)
                requests[index] = SimulatedRequest(following, steady(rng.choice((GOOD, BAD))))
                following += 1
    assert following > 100
    return machine.rate


def test_a_stream_of_requests() -> None:
    """Newcomers are tried, known ones kept. The slow ones stay longer, so four in five that run draft badly, and half
    of the rows is more than should draft: little can be won."""
    found = [stream(None, seed) / max(stream(k, seed) for k in (0, 1, 2)) for seed in (3, 4, 5)]
    assert min(found) >= 0.98
    assert sum(found) / len(found) >= 1.01


def test_requests_that_were_alike_are_not_asked_again_each_time_new_ones_come() -> None:
    """128 at 0.5, where no draft pays. A few decode while the others are read, which ends the rest: some nine steps
    of learning in each turn, and what the draft had to read for them: the likely reason for 0.922 of plain decoding in
    one run on an H200."""
    asked_again = []
    for seed in range(7):
        controller, machine = SpeculationController(split_costs(), MOST), Machine(split_costs(), random.Random(seed))
        drafted = []
        for turn in range(3):
            requests = make_requests(128, steady(0.5), first=1000 * turn)
            run_adaptive(machine, controller, requests[:16], 4)
            before = len(machine.history)
            run_adaptive(machine, controller, requests, 80)
            drafted.append(sum(any(counts) for counts in machine.history[before:]))
            for request in requests:
                controller.forget(request.seq_id)
        assert drafted[0] <= 16
        asked_again.append(sum(drafted[1:]))
    assert sorted(asked_again)[len(asked_again) // 2] <= 9  # some by luck: it is near to what pays


def test_what_is_taken_for_granted_when_traffic_turns_is_no_knowledge_of_a_request() -> None:
    """The first steps' drafts are taken more often than all that follow, so the traffic turns; every request is then
    held to be as good as the others. To take that for news of it ended learning at 128 rows before it began."""
    for seed in range(4):
        machine, controller = Machine(split_costs(), random.Random(seed)), SpeculationController(split_costs(), MOST)
        requests = mixed(128)
        early = [SimulatedRequest(request.seq_id, steady(0.78)) for request in requests]
        run_adaptive(machine, controller, early[:62], 1)
        run_adaptive(machine, controller, early[:124], 1)
        machine = Machine(split_costs(), machine.rng)
        run_adaptive(machine, controller, requests, 100)
        assert machine.rate >= 1.03 * best_fixed(mixed(128), 100)
