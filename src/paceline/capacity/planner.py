"""From a load and an objective to a fleet: which K, which degree of tensor parallelism, how many GPUs, at what cost.

    candidates = every (TP, K) whose memory plan holds; for each, the most sequences a replica may have so that cache,
    TTFT and TPOT are within bounds (all three grow with it), and from that the number of replicas.

The cheapest fleet wins, among equals the one with the least time a token. `plain` is the same search with K = 0 and no
draft loaded: the saving of speculation is the difference under the same objective.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil

from paceline.capacity.economics import Money, money
from paceline.capacity.memory import room_for_positions
from paceline.capacity.question import Objective, Question
from paceline.capacity.serving import Point, operate
from paceline.errors import ConfigurationError
from paceline.worker.memory_plan import MemoryPlan

MOST_SEQUENCES = 1024  # on one replica
SWEPT = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_USUAL_DEGREES = (1, 2, 4, 8)  # the default; of these, what cannot be is left out without a word
LIMITS = ("memory", "ttft", "tpot")
_WORTH_IT = 1.02  # a gain below this is no reason to draft


class NothingFitsError(ConfigurationError):
    """No degree of tensor parallelism has room for the weights and one request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What serves the load. `point` is one replica's."""

    tp: int
    k: int
    replicas: int
    nodes: int
    num_gpus: int  # that work
    rented_gpus: int  # whole machines
    most_sequences: int  # of a replica, within memory and objective
    limit: str  # what one more would miss: one of LIMITS; '': nothing but the load
    point: Point
    memory: MemoryPlan
    money: Money | None
    tokens_per_second: float  # output, of all replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """One concurrency on one replica, for every K."""

    concurrency: int
    points: tuple[Point, ...]
    best: Point  # most tokens a second
    gain_with_room: float  # of the best K over none, were there room in the cache for every K

    @property
    def gain(self) -> float:
        """Of the best K over none."""
        plain = next(point for point in self.points if point.k == 0)
        return self.best.tokens_per_second / plain.tokens_per_second


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    question: Question
    fleets: tuple[Fleet, ...]  # every (TP, K) that can serve the load, cheapest first
    sweep: tuple[Swept, ...]
    swept_tp: int
    fitting: tuple[int, ...]  # degrees of tensor parallelism with room for the weights and one request
    notes: tuple[str, ...]

    @property
    def best(self) -> Fleet | None:
        return self.fleets[0] if self.fleets else None

    @property
    def plain(self) -> Fleet | None:
        """The cheapest without speculation."""
        return next((fleet for fleet in self.fleets if fleet.k == 0), None)

    @property
    def speculative(self) -> Fleet | None:
        return next((fleet for fleet in self.fleets if fleet.k > 0), None)

    def cheapest(self, *, tp: int, drafts: bool) -> Fleet | None:
        """Of one degree of tensor parallelism."""
        return next((fleet for fleet in self.fleets if fleet.tp == tp and (fleet.k > 0) is drafts), None)

    @property
    def speculative_at_plain_tp(self) -> Fleet | None:
        """With the plain fleet's degree, so that what differs is speculation alone."""
        return None if self.plain is None else self.cheapest(tp=self.plain.tp, drafts=True)

    @property
    def saving(self) -> float | None:
        """Share of the plain fleet's cost that speculation saves, in whole machines, each at its best degree; below 0
        where it costs more."""
        return _saving(self.plain, self.speculative)

    @property
    def saving_at_plain_tp(self) -> float | None:
        return _saving(self.plain, self.speculative_at_plain_tp)

    @property
    def gpu_saving(self) -> float | None:
        """As `saving`, of GPUs that work, however they are rented."""
        if self.plain is None or self.speculative is None:
            return None
        return 1 - self.speculative.num_gpus / self.plain.num_gpus

    @property
    def break_even(self) -> int | None:
        """The smallest swept concurrency of a replica from which on no K gains 2 %; None: all of them gain."""
        for place, swept in enumerate(self.sweep):
            if all(later.gain < _WORTH_IT for later in self.sweep[place:]):
                return swept.concurrency
        return None

    @property
    def without_gain_below_break_even(self) -> tuple[int, ...]:
        """Swept concurrencies below it at which no K gains 2 % either."""
        end = self.break_even
        return tuple(
            swept.concurrency
            for swept in self.sweep
            if swept.gain < _WORTH_IT and (end is None or swept.concurrency < end)
        )

    @property
    def is_for_want_of_room(self) -> bool:
        """At the break-even a K would gain, and none that does has room in the cache for so many requests."""
        return any(swept.gain_with_room >= _WORTH_IT for swept in self.sweep if swept.concurrency == self.break_even)


def _saving(plain: Fleet | None, drafted: Fleet | None) -> float | None:
    return None if plain is None or drafted is None else 1 - drafted.rented_gpus / plain.rented_gpus


def answer(question: Question) -> Answer:
    """Raises NothingFitsError where nothing fits at all."""
    fitting, notes = _fitting(question)
    if not fitting:
        raise NothingFitsError(" ".join(["Nothing fits.", *notes]))
    fleets = [fleet for tp in fitting for k in question.ks if (fleet := _fleet(question, tp, k)) is not None]
    fleets.sort(key=lambda fleet: (fleet.rented_gpus, fleet.num_gpus, fleet.point.tpot))
    swept_tp = fleets[0].tp if fleets else fitting[-1]
    if not fleets:
        notes.append(_missed(question, fitting))
    return Answer(
        question=question,
        fleets=tuple(fleets),
        sweep=tuple(_sweep(question, swept_tp)),
        swept_tp=swept_tp,
        fitting=tuple(fitting),
        notes=tuple(notes),
    )


def _fitting(question: Question) -> tuple[list[int], list[str]]:
    """The degrees with room for the weights and one request; and why the others have none."""
    fitting: list[int] = []
    notes = [
        f"TP={tp} is left out: the heads of the models, or the GPUs of a node, cannot be cut so."
        for tp in question.asked_tps
        if tp not in question.tps and tp not in _USUAL_DEGREES
    ]
    for tp in question.tps:
        try:
            question.memory(tp, 0, 1)
        except ConfigurationError as error:
            notes.append(f"TP={tp} is left out: {error}")
        else:
            fitting.append(tp)
    return fitting, notes


def _fleet(question: Question, tp: int, k: int) -> Fleet | None:
    most = _most_sequences(question, tp, k)
    if most == 0:
        return None
    replica, workload = question.replica(tp), question.load.workload

    def point(concurrency: int) -> Point:
        return operate(replica, workload, concurrency, k)

    if question.load.users is not None:
        replicas = ceil(question.load.users / most)
        at = point(ceil(question.load.users / replicas))
        served = question.load.users / at.concurrency * at.requests_per_second
    else:
        assert question.load.requests_per_second is not None
        served = question.load.requests_per_second
        replicas = ceil(served / point(most).requests_per_second)
        at = point(_smallest(lambda b: point(b).requests_per_second >= served / replicas, most))
    num_gpus = replicas * tp
    rented = num_gpus if question.price is None else ceil(num_gpus / question.price.gpus) * question.price.gpus
    return Fleet(
        tp=tp,
        k=k,
        replicas=replicas,
        nodes=ceil(replicas / max(1, question.gpu.gpus_per_node // tp)),
        num_gpus=num_gpus,
        rented_gpus=rented,
        most_sequences=most,
        limit="" if most >= MOST_SEQUENCES else what_stops(question, tp, k, most + 1),
        point=at,
        memory=question.memory(tp, k, most),
        money=_money(question, rented, served),
        tokens_per_second=served * workload.output_len,
    )


def _money(question: Question, rented: int, requests_per_second: float) -> Money | None:
    if question.price is None:
        return None
    return money(
        num_gpus=rented,
        usd_per_gpu_hour=question.price.usd_per_gpu_hour,
        requests_per_second=requests_per_second,
        input_len=question.load.workload.input_len,
        output_len=question.load.workload.output_len,
        utilization=question.utilization,
        selling=question.selling,
    )


def _most_sequences(question: Question, tp: int, k: int) -> int:
    """Of one replica; 0: not even one. More than the load's users are of no use."""

    def fits(concurrency: int) -> bool:
        return not what_stops(question, tp, k, concurrency)

    most = min(question.load.users or MOST_SEQUENCES, MOST_SEQUENCES, question.limits.max_num_seqs)
    return most if fits(most) else _smallest(lambda b: not fits(b), most) - 1


def what_stops(question: Question, tp: int, k: int, concurrency: int) -> str:
    """Why a replica cannot have so many requests in flight: the first of LIMITS that they miss; '' where it can."""
    workload = question.load.workload
    try:
        plan = question.memory(tp, k, concurrency)
    except ConfigurationError:
        return "memory"
    if room_for_positions(plan, question.limits) < concurrency * (workload.most_positions + k):
        return "memory"
    point = operate(question.replica(tp), workload, concurrency, k)
    if point.ttft > question.objective.ttft:
        return "ttft"
    return "tpot" if point.tpot > question.objective.tpot else ""


def _smallest(holds: Callable[[int], bool], most: int) -> int:
    """The smallest of 1 .. most for which `holds`, which is true from somewhere on; `most` if it never is."""
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def _sweep(question: Question, tp: int) -> Sequence[Swept]:
    """Whatever the objective is, as far as the cache has room."""
    free = replace(
        question, objective=Objective(), load=replace(question.load, users=MOST_SEQUENCES, requests_per_second=None)
    )
    ks = sorted({0, *question.ks})
    room = {k: _most_sequences(free, tp, k) for k in ks}
    replica = question.replica(tp)
    rows = []
    for concurrency in SWEPT:
        every = [operate(replica, question.load.workload, concurrency, k) for k in ks]
        points = tuple(point for point in every if room[point.k] >= concurrency)
        if points and points[0].k == 0:
            best = max(points, key=_speed)
            with_room = max(map(_speed, every)) / points[0].tokens_per_second
            rows.append(Swept(concurrency=concurrency, points=points, best=best, gain_with_room=with_room))
    return rows


def _speed(point: Point) -> float:
    return point.tokens_per_second


def _missed(question: Question, tps: Sequence[int]) -> str:
    """How near the objective can be come to: one sequence a replica."""
    points = [
        (tp, operate(question.replica(tp), question.load.workload, 1, k))
        for tp in tps
        for k in sorted({0, *question.ks})
    ]
    tp, fastest = min(points, key=lambda pair: pair[1].tpot)
    first_tp, first = min(points, key=lambda pair: pair[1].ttft)
    return (
        f"The objective cannot be met with {question.gpu.name}: alone on a replica, a request gets a token every "
        f"{fastest.tpot * 1e3:.1f} ms at best (TP={tp}, K={fastest.k}) and its first one after "
        f"{first.ttft * 1e3:.0f} ms (TP={first_tp}). Allow more (--tpot-ms, --ttft-ms), more "
        "ranks (--tp), or take another GPU."
    )
