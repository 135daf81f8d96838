"""Histogram: counts in fixed buckets, as Prometheus has them. One thread, no locks: it is fed for every token."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` are the buckets' upper ends, ascending; one more bucket holds what is above the last."""
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float, count: int = 1) -> None:
        """`count` observations of the same value."""
        self._counts[bisect_left(self._bounds, value)] += count
        self.sum += value * count

    @property
    def count(self) -> int:
        return sum(self._counts)

    def cumulative(self) -> list[tuple[str, float]]:
        """(upper end, observations up to it), the last one "+Inf"."""
        total, rows = 0, []
        for bound, count in zip([*map(str, self._bounds), "+Inf"], self._counts, strict=True):
            total += count
            rows.append((bound, float(total)))
        return rows
