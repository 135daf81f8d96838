"""Did what is measured stay the same while it was measured? The last rounds against the first, arm by arm.

Arms take turns, so a slow drift leaves the gain as it is and hides in its interval, which only grows wide. It is seen
here by the pace (TPOT) of the same prompts, in the last third of the rounds over the first; where thirds have too few
prompts in common, by the pace of all their answers, whose lengths and prompts then differ too.

Only with so many users at a time: Poisson arrivals are others in each round, and so is what is under way.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from paceline.bench.serve import latency
from paceline.bench.serve.intervals import Estimate, ratio
from paceline.bench.serve.records import Load, Record
from paceline.bench.serve.results import Comparison

_FEWEST_PAIRS = 8
_SIGMAS = 3.0  # a run has a dozen cases: of one in twenty there would be one in every other run
_SIGMAS_OF_95 = 1.96
_LITTLE = 0.05
_LEAST = 0.02  # of the baseline, where even that is more than the interval of a gain


def drift(
    records: Mapping[tuple[str, Load], Sequence[Record]], baseline: str | None, compared: Sequence[Comparison]
) -> list[str]:
    """A sentence where an arm moved; none where nothing did, or with one round."""
    moved = {
        key: found
        for key, answers in records.items()
        if key[1].kind == "users" and (found := moved_by(answers)) is not None
    }
    widths = {
        load: max(map(_half_width, (c.gain for c in compared if c.load == load)), default=0.0) for _, load in moved
    }
    far = {
        (arm, load): value
        for (arm, load), value in moved.items()
        if _is_sure(value, _SIGMAS, _LITTLE)
        or (arm == baseline and widths[load] and _is_sure(value, _SIGMAS_OF_95, max(widths[load], _LEAST)))
    }
    if not far:
        return []
    named = ", ".join(f"{arm} {_in_words(value)} at {load.label}" for (arm, load), value in far.items())
    line = (
        f"THE ARMS DID NOT STAY THE SAME DURING THE RUN. TPOT in the last third of the rounds over the first third: "
        f"{named}. The arms took turns, so gains are those of the whole run; other figures are of a machine that "
        "changed meanwhile. Find out why (heat, other work on the machine, a cache that filled) and run again."
    )
    hidden = [load for arm, load in far if arm == baseline and abs(far[arm, load].value - 1) > widths[load] > 0]
    if hidden:
        where = ", ".join(load.label for load in hidden)
        of_what = " and ".join(dict.fromkeys(c.gain_words for c in compared if c.load in hidden))
        line += f" At {where} the baseline itself moved by more than the interval of the {of_what} is wide to a side."
    return [line]


def moved_by(records: Sequence[Record]) -> Estimate | None:
    """Mean TPOT in the last third of the rounds over that in the first; None where there is too little to tell."""
    rounds = sorted({record.round for record in records})
    part = max(1, len(rounds) // 3)
    if len(rounds) < 2:
        return None
    first, last = (_paces(records, set(some)) for some in (rounds[:part], rounds[-part:]))
    common = sorted(first.keys() & last.keys())
    if len(common) >= _FEWEST_PAIRS:
        below, above = (np.asarray([np.mean(paces[key]) for key in common]) for paces in (first, last))
        return ratio(above, below, paired=True)
    below, above = (np.asarray([pace for some in paces.values() for pace in some]) for paces in (first, last))
    return ratio(above, below, paired=False)


def _paces(records: Sequence[Record], rounds: set[int]) -> dict[tuple[int, int], list[float]]:
    """By prompt and turn."""
    found: dict[tuple[int, int], list[float]] = defaultdict(list)
    for record in latency.answered(records):
        if record.round in rounds and (pace := latency.tpot(record)) is not None:
            found[record.prompt, record.turn].append(pace)
    return found


def _is_sure(moved: Estimate, sigmas: float, least: float) -> bool:
    """Further from 1 than `least`, and than so many standard errors (of the logarithm, by the width of 95 %)."""
    if abs(moved.value - 1) <= least:
        return False
    if moved.low is None or moved.high is None or moved.low <= 0:  # too little to tell
        return False
    error = math.log(moved.high / moved.low) / (2 * _SIGMAS_OF_95)
    return abs(math.log(moved.value)) > sigmas * error


def _half_width(gain: Estimate | None) -> float:
    """To a side, as a share of the gain; 0: no interval."""
    if gain is None or gain.low is None or gain.high is None:
        return 0.0
    return (gain.high - gain.low) / 2 / gain.value


def _in_words(moved: Estimate) -> str:
    return f"{moved.value:.2f}x [{moved.low:.2f}, {moved.high:.2f}]"
