"""95 % intervals by the bootstrap (percentile method, scipy), repeatable: the generator is seeded.

What is drawn again: requests, for latencies; pairs of requests with the same place and round, for ratios of
latencies; tenths of a round, for throughput (batch means: they carry what a machine does from minute to minute). An
interval is about this machine, these prompts and this day; it knows nothing of others.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from scipy import stats

Values = npt.NDArray[np.float64]
Statistic = Callable[..., Any]
_RESAMPLES = 1000
_FEWEST = 4  # below that an interval would say nothing


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


def _bootstrap(data: Sequence[Values], statistic: Statistic, *, paired: bool) -> Estimate:
    value = float(statistic(*data, axis=-1))
    if min(len(sample) for sample in data) < _FEWEST or all(np.ptp(sample) == 0 for sample in data):
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
