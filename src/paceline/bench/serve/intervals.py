"""95 % intervals by the bootstrap (percentile method, scipy), repeatable: the generator is seeded.

What is drawn again: requests, for latencies; pairs of requests with the same place and round, for ratios of
latencies; tenths of a round, for throughput (batches: they carry what a machine does from minute to minute), each with
its tokens and its seconds, since what counts is all tokens over all seconds and rounds are not equally long. An
interval is about this machine, these prompts and this day; it knows nothing of others.

What requests of one round share, the moment that an arm's turn happens to have, such a drawing does not see. So an
interval is never narrower than what the rounds' own values give (`among_rounds`): their spread, on a logarithmic scale,
by Student's t. A few rounds may agree by luck, and one has no spread: as in Smyth's moderated t (2004) a spread of 6 %
is imagined beside the one that was seen, with the weight of one degree of freedom. With one round that is all there is,
and its interval goes from half the value to twice it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from scipy import stats

Values = npt.NDArray[np.float64]
Statistic = Callable[..., Any]
_RESAMPLES = 1000
FEWEST = 4  # requests, or slices; below that an interval would say nothing
_IMAGINED = 0.06  # spread of a round's value, as a logarithm
_IMAGINED_WEIGHT = 1.0  # degrees of freedom


SLICES = 10  # of a round


def few_answers(users: float | None) -> int:
    """Below so many answers tenths of a round say nothing of tokens a second: with fewer than two for each user most of
    them have no token or all of them."""
    return max(FEWEST, math.ceil(2 * (users or 0)))


class Estimate(msgspec.Struct):
    """`low` and `high`: 95 %; None where there is too little to tell."""

    value: float
    low: float | None = None
    high: float | None = None


def estimate(values: Values, statistic: Statistic = np.mean) -> Estimate | None:
    """`statistic` takes `axis`. None without values."""
    if not len(values):
        return None
    return _bootstrap((values,), statistic, paired=False)


def among_rounds(found: Estimate | None, *sides: Sequence[float], most: float = math.inf) -> Estimate | None:
    """`found`, with an interval at least as wide as the rounds' own values give. `sides`: of each side of a ratio the
    values of its rounds; or the ratios of rounds in which both sides took turns, as one side. `most`: a bound of what
    is measured. Values of 0 have no logarithm and are left out; where nothing is left, or `found` has no interval, it
    stays as it is."""
    if found is None or found.low is None or found.high is None or not found.value > 0:
        return found
    width = 0.0
    for values in sides:
        logs = np.log([value for value in values if value > 0])
        if len(logs):
            freedom = _IMAGINED_WEIGHT + len(logs) - 1
            seen = float(np.sum((logs - logs.mean()) ** 2))
            variance = (_IMAGINED_WEIGHT * _IMAGINED**2 + seen) / freedom
            width += variance / len(logs) * float(stats.t.ppf(0.975, freedom)) ** 2
    factor = math.exp(math.sqrt(width))
    return Estimate(found.value, min(found.low, found.value / factor), min(most, max(found.high, found.value * factor)))


def percentile(values: Values, q: float) -> Estimate | None:
    def statistic(sample: Values, axis: int = -1) -> Any:
        return np.percentile(sample, q, axis=axis)

    return estimate(values, statistic)


def ratio(above: Values, below: Values, *, paired: bool) -> Estimate | None:
    """mean(above) / mean(below). Where a resample of `below` is 0 (slices without a token) a thousandth of its mean is
    taken: an edge without end would be no number."""
    if not len(above) or not len(below) or not below.mean() > 0:
        return None

    least = float(below.mean()) / 1000

    def statistic(one: Values, two: Values, axis: int = -1) -> Any:
        return np.mean(one, axis=axis) / np.maximum(np.mean(two, axis=axis), least)

    return _bootstrap((above, below), statistic, paired=paired)


@dataclass(frozen=True, slots=True)
class Slices:
    """Stretches of time: tokens a second in each, and its length in seconds."""

    rates: Values
    seconds: Values

    @property
    def tokens(self) -> float:
        return float(np.sum(self.rates * self.seconds))

    def rate(self, places: Any) -> Any:
        """All tokens over all seconds of the slices at `places` [..., N]."""
        seconds = self.seconds[places]
        return np.sum(self.rates[places] * seconds, axis=-1) / np.sum(seconds, axis=-1)

    def __len__(self) -> int:
        return len(self.rates)

    @property
    def by_round(self) -> list[float]:
        """Tokens a second of each round; []: they are not told apart."""
        if not len(self) or len(self) % SLICES:
            return []
        places = np.arange(len(self)).reshape(-1, SLICES)
        return [float(self.rate(round_)) for round_ in places]


def rate(slices: Slices) -> Estimate | None:
    """Tokens a second over all of them. None without slices."""
    if not len(slices):
        return None
    return _of_slices([slices], slices.rate)


def rate_ratio(above: Slices, below: Slices) -> Estimate | None:
    """Of their rates; as in `ratio`, no resample of `below` counts for less than a thousandth of it."""
    if not len(above) or not len(below) or not below.tokens > 0:
        return None
    least = float(below.rate(np.arange(len(below)))) / 1000

    def statistic(one: Any, two: Any) -> Any:
        return above.rate(one) / np.maximum(below.rate(two), least)

    return _of_slices([above, below], statistic)


def _of_slices(parts: Sequence[Slices], of_places: Callable[..., Any]) -> Estimate:
    """Slices are drawn again by their places, so that each keeps its tokens and seconds together."""
    places: list[Any] = [np.arange(len(part)) for part in parts]

    def statistic(*drawn: Any, axis: int = -1) -> Any:
        return of_places(*drawn)

    if all(np.ptp(part.rates) == 0 for part in parts):
        return Estimate(float(statistic(*places)))
    return _bootstrap(places, statistic, paired=False)


def _bootstrap(data: Sequence[Values], statistic: Statistic, *, paired: bool) -> Estimate:
    value = float(statistic(*data, axis=-1))
    if min(len(sample) for sample in data) < FEWEST or all(np.ptp(sample) == 0 for sample in data):
        return Estimate(value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        found = stats.bootstrap(
            tuple(data),
            statistic,
            n_resamples=_RESAMPLES,
            batch=max(1, 10_000_000 // sum(map(len, data))),
            vectorized=True,
            paired=paired,
            method="percentile",
            rng=np.random.default_rng(0),
        ).confidence_interval
    return Estimate(value, float(found.low), float(found.high))
