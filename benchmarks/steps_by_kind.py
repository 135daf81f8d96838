"""Seconds of a run on a machine that others slow down: each step at the median time of its kind.

A kind is what a step computes: how many rows, how many drafts in all, and the most of one row. Bursts in which a
neighbour takes the processor make single steps several times as long; over a run they add up to more than what is to
be compared, and over all rounds they hardly move a median. Of each side its own steps are taken, so what the side
itself spends beside them (its decisions) counts.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence

Kind = tuple[int, int, int]  # rows, drafts, most drafts of a row


def kind_of(drafts: Sequence[int]) -> Kind:
    return len(drafts), sum(drafts), max(drafts, default=0)


def settled_seconds(runs: Iterable[Sequence[tuple[Kind, float]]]) -> list[float]:
    """Of each run (its steps, with the seconds that each took), if every step had taken the median over all runs."""
    runs = list(runs)
    times: dict[Kind, list[float]] = defaultdict(list)
    for steps in runs:
        for kind, seconds in steps:
            times[kind].append(seconds)
    medians = {kind: statistics.median(found) for kind, found in times.items()}
    return [sum(medians[kind] for kind, _ in steps) for steps in runs]
