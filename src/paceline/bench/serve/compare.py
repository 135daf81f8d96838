"""An arm against its baseline, load by load, and where speculation stops paying (p33)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from itertools import pairwise

import numpy as np

from paceline.bench.serve import latency
from paceline.bench.serve.intervals import Estimate, among_rounds, few_answers, rate_ratio, ratio
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
        gain = _of_slices(case, base, took_turns=bool(pairs)) or _of_values(case.output_tok_s, base.output_tok_s)
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


def _of_slices(case: Case, base: Case, *, took_turns: bool) -> Estimate | None:
    """Of tokens a second. `took_turns`: the rounds of both are the same moments."""
    gain = rate_ratio(case.slices, base.slices)
    answers = min(one.num_requests - one.num_failed for one in (case, base))
    if gain is None or answers < few_answers(case.load.value):
        return None if gain is None else Estimate(gain.value)
    ours, theirs = case.slices.by_round, base.slices.by_round
    if took_turns and len(ours) == len(theirs) and min(theirs, default=0) > 0:
        return among_rounds(gain, [one / two for one, two in zip(ours, theirs, strict=True)])
    return among_rounds(gain, ours, theirs)


def _paired(pairs: Sequence[tuple[Record, Record]], metric: Callable[[Record], float | None]) -> Estimate | None:
    values = [(ours.round, metric(theirs), metric(ours)) for ours, theirs in pairs]
    known = [(number, above, below) for number, above, below in values if above is not None and below is not None]
    if not any(theirs for _, theirs, _ in known):  # tokens that came all at once: nothing is any times as fast as that
        return None
    rounds, above, below = np.asarray(known, dtype=np.float64).T
    each = [(above[rounds == number].mean(), below[rounds == number].mean()) for number in np.unique(rounds)]
    return among_rounds(ratio(above, below, paired=True), [float(one / two) for one, two in each if two > 0])


def _of_means(case: Case, base: Case, metric: str) -> Estimate | None:
    above, below = base.latency(metric, "mean"), case.latency(metric, "mean")
    return Estimate(above / below) if above and below else None


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
            found.append(_break_even(arm, baseline, dict(sorted(gains.items()))))
    return found


def _break_even(arm: str, baseline: str, gains: Mapping[float, Estimate]) -> BreakEven:
    """Where the gain falls through 1 for good, straight between two points over the logarithm of the users."""
    users = None
    for (one, before), (two, after) in pairwise((users, gain.value) for users, gain in gains.items()):
        if before >= 1 > after:
            place = (before - 1) / (before - after)
            users = math.exp(math.log(one) + place * (math.log(two) - math.log(one)))
        elif after > 1:
            users = None  # more users gain again: a fall below them is no end of the gain
    return BreakEven(arm, baseline, users, _in_words(arm, baseline, gains, users))


def _in_words(arm: str, baseline: str, gains: Mapping[float, Estimate], users: float | None) -> str:
    """What is shown first; then the loads at which nothing is: no sentence claims what a later one takes back."""
    more, fewer, unsure, even, unknown = (
        [load for load, gain in gains.items() if verdict(gain) == wanted] for wanted in Verdict
    )
    parts = []
    edge, is_gain_below = "", True
    if users is not None:
        is_gain_below = all(gain.value >= 1 for load, gain in gains.items() if load < users)
        edge = f"{arm} gains up to" if is_gain_below else f"{arm} gains for the last time up to"
        edge += f" about {_at([users])}"
    if edge and is_gain_below and more and fewer and max(more) < (users or 0) < min(fewer):
        parts.append(f"{edge}; above that {baseline} gives more tokens a second.")
        edge = ""
    elif more or fewer:
        than = f"tokens a second than {baseline} at"
        where = [f"more {than} {_at(more)}"] if more else []
        if fewer:
            where.append(f"fewer at {_at(fewer)}" if where else f"fewer {than} {_at(fewer)}")
        parts.append(f"{arm} gives {' and '.join(where)}.")
    if unsure:
        start = "At" if parts else f"No difference in tokens a second between {arm} and {baseline} is shown: at"
        parts.append(f"{start} {_at(unsure)} the 95 % interval of the gain holds both gain and loss.")
    if unknown:
        than = f"tokens a second than {baseline} at"
        higher, lower = ([load for load in unknown if (gains[load].value > 1) is is_more] for is_more in (True, False))
        where = [f"{word} {than} {_at(loads)}" for word, loads in (("more", higher), ("fewer", lower)) if loads]
        parts.append(f"Without an interval, by the values alone, {arm} gives {' and '.join(where)}.")
    if even:
        parts.append(f"{arm} and {baseline} give the same tokens a second at {_at(even)}.")
    if edge:
        parts.append(f"By the measured values alone, {edge}.")
    return " ".join(parts)


class Verdict(Enum):
    MORE = 1
    FEWER = 2
    UNSURE = 3  # the interval holds 1
    EVEN = 4  # no interval, and exactly 1
    UNKNOWN = 5  # no interval


def verdict(gain: Estimate) -> Verdict:
    low, high = gain.low, gain.high
    if low is None or high is None:
        return Verdict.EVEN if gain.value == 1 else Verdict.UNKNOWN
    return Verdict.MORE if low > 1 else Verdict.FEWER if high < 1 else Verdict.UNSURE


def _at(loads: Sequence[float]) -> str:
    """'1 user', '2, 4 and 8 users'."""
    words = [f"{load:.3g}" if load < 1000 else f"{load:g}" for load in loads]
    joined = " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
    return f"{joined} user" + ("" if words == ["1"] else "s")
