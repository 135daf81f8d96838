"""Seconds of a run on a machine that others slow down: each step at the time its kind takes undisturbed.

A kind is what a step computes: how many rows, how many drafts in all, and the most of one row. Its time is the lower
quintile over all rounds: a neighbour that takes the processor for a moment, or for the seconds of a whole run, makes
steps up to several times as long, never shorter, and over a run that adds up to more than what is to be compared. Of
each side its own steps are taken, so what the side itself spends beside them (its decisions) counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

Kind = tuple[int, int, int]  # rows, drafts, most drafts of a row


def kind_of(drafts: Sequence[int]) -> Kind:
    return len(drafts), sum(drafts), max(drafts, default=0)


def settled_seconds(runs: Iterable[Sequence[tuple[Kind, float]]]) -> list[float]:
    """Of each run (its steps, with the seconds that each took), if each had taken the lower quintile over all runs."""
    runs = list(runs)
    times: dict[Kind, list[float]] = defaultdict(list)
    for steps in runs:
        for kind, seconds in steps:
            times[kind].append(seconds)
    usual = {kind: sorted(found)[len(found) // 5] for kind, found in times.items()}
    return [sum(usual[kind] for kind, _ in steps) for steps in runs]
