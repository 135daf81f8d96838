"""What a plan is asked: models, card, load, objective, limits, money. A value, checked where it is made."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf

from paceline.bench.acceptance import SyntheticAcceptance
from paceline.capacity.economics import Selling
from paceline.capacity.efficiency import Efficiency
from paceline.capacity.hardware import Gpu
from paceline.capacity.memory import Limits, plan_pair
from paceline.capacity.pair import PlannedModel
from paceline.capacity.prices import Price
from paceline.capacity.roofline import Setup
from paceline.capacity.serving import Point, Replica, Workload
from paceline.errors import ConfigurationError
from paceline.worker.memory_plan import MemoryPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """Mean seconds; infinite: any."""

    ttft: float = inf
    tpot: float = inf

    def __post_init__(self) -> None:
        if self.ttft <= 0 or self.tpot <= 0:
            raise ConfigurationError("--ttft-ms and --tpot-ms must be above 0: times, in milliseconds.")

    def holds(self, point: Point) -> bool:
        return point.ttft <= self.ttft and point.tpot <= self.tpot


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Of all replicas together: either so many requests always in flight, or so many arriving a second."""

    workload: Workload
    users: int | None = None
    requests_per_second: float | None = None

    def __post_init__(self) -> None:
        if (self.users is None) == (self.requests_per_second is None):
            raise ConfigurationError("Give either --users or --requests-per-second: one of them is the load.")
        if self.users is not None and self.users < 1:
            raise ConfigurationError(f"--users must be at least 1, not {self.users}.")
        if self.requests_per_second is not None and self.requests_per_second <= 0:
            raise ConfigurationError(f"--requests-per-second must be above 0, not {self.requests_per_second}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Everything that a plan is asked."""

    gpu: Gpu
    target: PlannedModel
    draft: PlannedModel | None
    is_ngram: bool
    acceptance: SyntheticAcceptance
    load: Load
    objective: Objective
    ks: tuple[int, ...]
    tps: tuple[int, ...]
    draft_tp: int
    limits: Limits
    efficiency: Efficiency
    price: Price | None
    utilization: float = 1.0
    selling: Selling = field(default_factory=Selling)
    is_random: bool = True
    asked_tps: tuple[int, ...] = ()  # by the user; those beside `tps` cannot be

    def replica(self, tp: int) -> Replica:
        setup = Setup(
            gpu=self.gpu,
            efficiency=self.efficiency,
            tp=tp,
            draft_tp=min(self.draft_tp, tp),
            is_random=self.is_random,
        )
        return Replica(
            setup=setup,
            target=self.target,
            draft=self.draft,
            acceptance=self.acceptance,
            max_num_batched_tokens=self.limits.max_num_batched_tokens,
        )

    def memory(self, tp: int, k: int, num_sequences: int) -> MemoryPlan:
        limits = replace(self.limits, max_num_seqs=num_sequences)
        return plan_pair(self.gpu, self.target, self.draft, k, limits, tp=tp, draft_tp=min(self.draft_tp, tp))
