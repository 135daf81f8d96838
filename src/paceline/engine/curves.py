"""Curves of seconds over a size, and what measured steps depart from them."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from itertools import pairwise

import msgspec


class Curve(msgspec.Struct):
    """Seconds over a size, straight between the points and beyond the last one. Never falling."""

    sizes: list[float]
    values: list[float]

    def __call__(self, size: float) -> float:
        sizes, values = self.sizes, self.values
        if size <= sizes[0] or len(sizes) == 1:
            return values[0]
        if size > sizes[-1]:  # noise at the end of the grid must not make the rest free
            last = max(values[-1] - values[-2], 0.0) / (sizes[-1] - sizes[-2])
            average = (values[-1] - values[0]) / (sizes[-1] - sizes[0])
            return values[-1] + (size - sizes[-1]) * max(last, average)
        right = bisect_left(sizes, size)
        share = (size - sizes[right - 1]) / (sizes[right] - sizes[right - 1])
        return values[right - 1] + share * (values[right] - values[right - 1])

    def scale(self, size: float, factor: float) -> None:
        """Move the nearest point; its neighbours give way where the curve would fall."""
        sizes, values = self.sizes, self.values
        place = bisect_left(sizes, size)
        if place == len(sizes) or (place and size - sizes[place - 1] <= sizes[place] - size):
            place -= 1
        values[place] *= factor
        if any(right < left for left, right in pairwise(values)):
            self.values = rising(values)

    @staticmethod
    def through(samples: Seq[tuple[float, float]]) -> Curve:
        """Samples (size, seconds) of one size are averaged; what falls is levelled (isotonic regression)."""
        by_size: dict[float, list[float]] = {}
        for size, seconds in samples:
            by_size.setdefault(size, []).append(seconds)
        sizes = sorted(by_size)
        means = [sum(by_size[size]) / len(by_size[size]) for size in sizes]
        return Curve(sizes, rising(means))


def rising(values: Seq[float]) -> list[float]:
    """The nearest sequence that never falls: neighbours out of order share their mean (pool adjacent violators)."""
    pools: list[tuple[float, int]] = []  # mean, length
    for value in values:
        mean, length = value, 1
        while pools and pools[-1][0] > mean:
            before, count = pools.pop()
            mean, length = (before * count + mean * length) / (count + length), count + length
        pools.append((mean, length))
    return [mean for mean, length in pools for _ in range(length)]


class Departures(msgspec.Struct):
    """By what factor steps differ from what their parts put together say, over rows and tokens a row.

    Straight between the points (rows by their logarithm), level beyond them.

    rows                ascending
    per_row[i]          tokens a row of the points with rows[i] rows, ascending
    factors[i][j]       there
    live[i][j]          live steps that have corrected it
    """

    rows: list[float]
    per_row: list[list[float]]
    factors: list[list[float]]
    live: list[list[int]] = []

    def __post_init__(self) -> None:
        self.live = self.live or [[0] * len(line) for line in self.factors]

    @staticmethod
    def none() -> Departures:
        """All factors 1, at the sizes that live steps may correct."""
        rows, per_row = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0], [1.0, 2.0, 3.0, 4.0, 6.0, 8.0]
        return Departures(rows, [list(per_row) for _ in rows], [[1.0] * len(per_row) for _ in rows])

    def factor(self, num_rows: int, tokens: float) -> float:
        return self.factors_of(num_rows, (tokens,))[0]

    def factors_of(self, num_rows: int, tokens: Iterable[float]) -> list[float]:
        """For steps of as many rows."""
        rows = self.rows
        right = bisect_right(rows, num_rows)
        shares = [count / num_rows for count in tokens]
        below = self._on_line(max(0, right - 1), shares)
        if right in (0, len(rows)) or rows[right - 1] == num_rows:
            return below
        part = math.log(num_rows / rows[right - 1]) / math.log(rows[right] / rows[right - 1])
        above = self._on_line(right, shares)
        return [low + part * (high - low) for low, high in zip(below, above, strict=True)]

    def _on_line(self, index: int, shares: Seq[float]) -> list[float]:
        places, factors = self.per_row[index], self.factors[index]
        found = []
        for share in shares:
            right = bisect_right(places, share)
            if right == 0 or right == len(places):
                found.append(factors[0 if right == 0 else -1])
            else:
                left = right - 1
                part = (share - places[left]) / (places[right] - places[left])
                found.append(factors[left] + part * (factors[right] - factors[left]))
        return found

    def nearest(self, num_rows: int, tokens: int) -> tuple[int, int]:
        """Indices of the point that speaks for such a step."""
        line = _nearest(self.rows, num_rows)
        return line, _nearest(self.per_row[line], tokens / num_rows)


def _nearest(values: Seq[float], wanted: float) -> int:
    """By their ratio; `values` ascend. (Some 20 logarithms a step were a tenth of what deciding takes.)"""
    right = bisect_left(values, wanted)
    if right in (0, len(values)):
        return max(0, right - 1)
    return right - 1 if wanted * wanted <= values[right - 1] * values[right] else right
