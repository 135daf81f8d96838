"""An arm against its baseline, load by load, and where speculation stops paying (p33)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from paceline.bench.serve import latency
from paceline.bench.serve.intervals import Estimate, ratio
from paceline.bench.serve.records import Load, Record
from paceline.bench.serve.results import BreakEven, Case, Comparison

Records = Mapping[tuple[str, Load], Sequence[Record]]


def comparisons(cases: Sequence[Case], records: Records, baseline: str | None, *, greedy: bool) -> list[Comparison]:
    """`records` may lack cases (results of another day): then ratios of latencies come from their means."""
    found = []
    for case in cases:
        base = next((c for c in cases if c.arm == baseline and c.load == case.load), None)
        if base is not None and case.arm != baseline:
            found.append(compare(case, base, records, greedy=greedy))
    return found


def compare(case: Case, base: Case, records: Records, *, greedy: bool) -> Comparison:
    ours, theirs = records.get((case.arm, case.load), ()), records.get((base.arm, base.load), ())
    pairs = _pairs(ours, theirs)
    gain = None
    if case.load.kind == "users":  # with arrivals of their own the load decides the throughput, not the server
        gain = ratio(np.asarray(case.slice_rates), np.asarray(base.slice_rates), paired=False)
        gain = gain or _of_values(case.output_tok_s, base.output_tok_s)
    texts = [(one.text_hash, two.text_hash) for one, two in pairs]
    return Comparison(
        arm=case.arm,
        baseline=base.arm,
        load=case.load,
        throughput_gain=gain,
        pace_gain=_paired(pairs, latency.tpot) or _of_means(case, base, "tpot"),
        ttft_gain=_paired(pairs, latency.ttft) or _of_means(case, base, "ttft"),
        same_texts=sum(one == two for one, two in texts) if greedy and texts else None,
        num_pairs=len(pairs),
    )


def _pairs(ours: Sequence[Record], theirs: Sequence[Record]) -> list[tuple[Record, Record]]:
    """Answers to the same prompt at the same place of the same round."""
    known = {(r.round, r.number, r.turn): r for r in latency.answered(theirs)}
    found = [(r, known.get((r.round, r.number, r.turn))) for r in latency.answered(ours)]
    return [(one, two) for one, two in found if two is not None and two.prompt == one.prompt]


def _paired(pairs: Sequence[tuple[Record, Record]], metric: Callable[[Record], float | None]) -> Estimate | None:
    values = [(metric(theirs), metric(ours)) for ours, theirs in pairs]
    known = [(above, below) for above, below in values if above is not None and below is not None]
    if not known:
        return None
    above, below = np.asarray(known, dtype=np.float64).T
    return ratio(above, below, paired=True)


def _of_means(case: Case, base: Case, metric: str) -> Estimate | None:
    above, below = base.latency(metric, "mean"), case.latency(metric, "mean")
    return Estimate(above / below) if above is not None and below else None


def _of_values(above: Estimate | None, below: Estimate | None) -> Estimate | None:
    return Estimate(above.value / below.value) if above and below and below.value else None


def break_even(compared: Sequence[Comparison]) -> list[BreakEven]:
    found = []
    for arm, baseline in dict.fromkeys((c.arm, c.baseline) for c in compared):
        gains = {
            c.load.value: c.throughput_gain
            for c in compared
            if c.arm == arm and c.throughput_gain is not None and c.load.kind == "users"
        }
        if gains:
            even = _break_even(arm, baseline, sorted((users, gain.value) for users, gain in gains.items()))
            even.words += _doubt(gains)
            found.append(even)
    return found


def _doubt(gains: Mapping[float, Estimate]) -> str:
    """Where the intervals cannot tell a gain from a loss."""
    unsure = [
        f"{users:g}" for users, gain in sorted(gains.items()) if gain.low and gain.high and gain.low < 1 < gain.high
    ]
    return f" The 95 % interval holds both gain and loss at {', '.join(unsure)} users." if unsure else ""


def _break_even(arm: str, baseline: str, points: Sequence[tuple[float, float]]) -> BreakEven:
    """Where the gain last falls through 1, straight between two points over the logarithm of the users."""
    first, last = points[0], points[-1]
    loads = f"{first[0]:g} to {last[0]:g} users" if len(points) > 1 else Load("users", first[0]).label
    users = None
    for (one, before), (two, after) in pairwise(points):
        if before >= 1 > after:
            place = (before - 1) / (before - after)
            users = math.exp(math.log(one) + place * (math.log(two) - math.log(one)))
    if users is not None:
        words = f"{arm} gains up to about {users:.3g} users; above that {baseline} gives more tokens a second."
    elif all(gain >= 1 for _, gain in points):
        words = f"{arm} gives no fewer tokens a second than {baseline} at {loads}."
    elif all(gain < 1 for _, gain in points):
        words = f"{arm} gives fewer tokens a second than {baseline} at {loads}."
    else:
        words = f"{arm} gives more tokens a second than {baseline} at {last[0]:g} users and fewer at {first[0]:g}."
    return BreakEven(arm, baseline, users, words)
