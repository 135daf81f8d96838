"""A machine and its requests, for the controller alone: true costs, true acceptance, no engine and no model.

Outcomes are drawn; what is added up is expected tokens and true seconds, so that a comparison of policies is not
one of luck. Costs of the H200 are read off docs/performance.md (70B shape, 1B draft), those of the CPU off
measurements of the default pair.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from paceline.engine.controller import SpeculationController
from paceline.engine.curves import Curve
from paceline.engine.goodput import DraftingRow
from paceline.engine.step_costs import PaddedCosts, RaggedCosts, StepCosts, active_rows, padding
from paceline.engine.tally import Outcome

GPU_VERIFY = Curve(
    [1, 8, 16, 32, 48, 64, 128, 256, 512, 1024],
    [17.04e-3, 17.04e-3, 17.22e-3, 17.75e-3, 18.07e-3, 18.75e-3, 21.77e-3, 29.46e-3, 55.33e-3, 110e-3],
)
GPU_DRAFT = Curve([1, 8, 16, 32, 48, 64, 128], [0.62e-3, 0.64e-3, 0.64e-3, 0.69e-3, 0.75e-3, 0.8e-3, 1.05e-3])
GPU_SIZES = [1, 2, 4, 6, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128]
DRAFT_COUNTS = [0, 1, 2, 3, 4, 5, 7]


def gpu_costs() -> PaddedCosts:
    return PaddedCosts(
        GPU_SIZES,
        DRAFT_COUNTS,
        [[1e-3 + GPU_VERIFY(n * (k + 1)) + k * GPU_DRAFT(n) for k in DRAFT_COUNTS] for n in GPU_SIZES],
        resume_seconds=60e-3,
        resume_token=5e-6,
    )


# Milliseconds of a step by rows, at K = 0, 1, 2, 3, 5, 7: adaptive-cuda.json of 2026-11-30, its fixed sides.
RECORDED_COUNTS = [0, 1, 2, 3, 5, 7]
RECORDED = {
    1: [18.53, 19.24, 19.94, 20.52, 21.87, 23.26],
    2: [18.67, 19.39, 20.23, 20.86, 22.32, 23.67],
    4: [18.76, 19.71, 20.66, 21.63, 23.28, 25.08],
    8: [18.91, 19.95, 21.16, 22.14, 24.14, 26.42],
    16: [19.29, 20.65, 22.17, 23.92, 26.86, 29.35],
    32: [19.93, 22.44, 24.56, 26.22, 33.72, 41.75],
    64: [22.07, 25.34, 32.45, 39.99, 57.29, 73.86],
    128: [25.46, 38.59, 56.31, 71.92, 106.30, 139.95],
}


def recorded_costs() -> PaddedCosts:
    """The H200's as the adaptive benchmark found them."""
    table = [[value * 1e-3 for value in row] for row in RECORDED.values()]
    return PaddedCosts(list(RECORDED), RECORDED_COUNTS, table, resume_seconds=40e-3, resume_token=10e-6)


# Milliseconds at K = 0, 1, 2, 3, 4, 5, 7, and with drafts for half of the rows at K = 2, 3, 4, 5, 7: an H200, 70B shape
# with a 1B draft in FP8, 128 positions a row, 2026-12-01.
SPLIT = {
    32: ([19.40, 21.91, 23.80, 26.00, 31.44, 33.43, 41.51], [23.63, 25.21, 27.18, 28.10, 34.53]),
    64: ([21.83, 25.70, 32.64, 40.56, 50.24, 57.15, 73.98], [25.97, 32.02, 34.12, 39.22, 47.57]),
    128: ([24.68, 38.57, 56.20, 70.38, 92.17, 107.05, 142.16], [40.97, 50.66, 58.45, 70.50, 82.94]),
}


def split_costs() -> PaddedCosts:
    """The H200's, where half of the rows may draft."""
    return PaddedCosts(
        list(SPLIT), DRAFT_COUNTS, [[value * 1e-3 for value in whole] for whole, _ in SPLIT.values()],
        resume_seconds=40e-3, resume_token=10e-6, split_sizes=list(SPLIT), split_counts=DRAFT_COUNTS[2:],
        split_table=[[value * 1e-3 for value in split] for _, split in SPLIT.values()],
    )  # fmt: skip


def cpu_costs() -> RaggedCosts:
    return RaggedCosts(
        Curve([1, 2, 4, 6, 8, 32, 192], [36e-3, 37e-3, 42e-3, 46e-3, 56e-3, 110e-3, 500e-3]),
        Curve([1, 2, 8, 32, 64, 1024], [4e-3, 4.2e-3, 6e-3, 13e-3, 22e-3, 300e-3]),
        padding_seconds=0.5e-3,
    )


def native_costs() -> RaggedCosts:
    """A CPU with the C++ forward: 12 ms a plain step of one row, 26 of eight, 47 of sixteen, 72 of 24."""
    verify = [12, 14, 18, 22, 26, 36, 47, 72, 94, 140, 186, 278, 555]
    draft = [1.2, 1.4, 1.8, 2.8, 4.6, 8, 15, 29]
    return RaggedCosts(
        Curve([1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 192], [value * 1e-3 for value in verify]),
        Curve([1, 2, 4, 8, 16, 32, 64, 128], [value * 1e-3 for value in draft]),
        padding_seconds=0.2e-3,
    )


Law = Callable[[int], float]  # tokens emitted so far -> P(a draft is kept | those before it were)


def steady(rate: float) -> Law:
    return lambda done: rate


@dataclass
class SimulatedRequest:
    seq_id: int
    law: Law
    done: int = 0
    lag: int = 0

    def expected(self, drafts: int) -> float:
        rate = self.law(self.done)
        return sum(rate**j for j in range(drafts + 1))


@dataclass
class Machine:
    """`costs` are the true ones; the controller may believe others."""

    costs: StepCosts
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    tokens: float = 0.0
    seconds: float = 0.0
    history: list[list[int]] = field(default_factory=list)
    jitter: float = 0.0  # of the times that are told, as a share

    def step(self, requests: list[SimulatedRequest], counts: list[int]) -> tuple[list[Outcome], float, float]:
        drafting, other = self._seconds(requests, counts)
        self.seconds += drafting + other
        self.history.append(counts)
        told = max(0.5, 1.0 + self.rng.gauss(0.0, self.jitter)) if self.jitter else 1.0
        outcomes = [self._row(request, count) for request, count in zip(requests, counts, strict=True)]
        return outcomes, told * drafting, told * other

    def _seconds(self, requests: list[SimulatedRequest], counts: list[int]) -> tuple[float, float]:
        lag = sum(request.lag for request, count in zip(requests, counts, strict=True) if count)
        if isinstance(self.costs, PaddedCosts):
            lag = sum(r.lag for r, count in zip(requests, counts, strict=True) if count and r.lag > 1)
            k = max(counts)
            plain = self.costs.seconds(len(counts), 0, 0.0)
            able = sum(count > 0 for count in counts)
            drafting = self.costs.seconds(len(counts), k, 0.0, able) - plain
            return drafting + (self.costs.catch_up(lag) if lag else 0.0), plain
        active = active_rows(counts)
        padded = padding(len(counts), active)
        return self.costs.drafting(active, lag), self.costs.verifying(len(counts), sum(active), 0.0, padded)

    def _row(self, request: SimulatedRequest, count: int) -> Outcome:
        rate = request.law(request.done)
        accepted = 0
        while accepted < count and self.rng.random() < rate:
            accepted += 1
        self.tokens += request.expected(count)
        request.done += accepted + 1
        request.lag = 0 if count else request.lag + 1
        return Outcome(request.seq_id, count, count, accepted, 0)

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def run_fixed(costs: StepCosts, requests: list[SimulatedRequest], k: int, steps: int) -> Machine:
    machine = Machine(costs)
    for _ in range(steps):
        machine.step(requests, [k] * len(requests))
    return machine


def run_adaptive(
    machine: Machine, controller: SpeculationController, requests: list[SimulatedRequest], steps: int, most: int = 7
) -> Machine:
    for _ in range(steps):
        rows = [DraftingRow(r.seq_id, most, 0, r.lag if r.lag > 1 else 0) for r in requests]
        controller.decide(rows)
        controller.start_step()
        outcomes, drafting, other = machine.step(requests, [controller.drafts(r.seq_id) for r in requests])
        lagging = any(row.lag for row, outcome in zip(rows, outcomes, strict=True) if outcome.planned)
        padded = isinstance(controller.costs, PaddedCosts)
        controller.end_step(outcomes, drafting, other, is_typical=not lagging, captured=padded)
    return machine


def make_requests(count: int, law: Law, first: int = 0) -> list[SimulatedRequest]:
    return [SimulatedRequest(first + index, law) for index in range(count)]
