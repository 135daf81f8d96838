"""Are these tokens drawn from that law? Counts against probabilities, and how much a "yes" is worth.

One test takes all tokens sampled at one place of one case. They fall into groups of equal prefix; each group has
its own exact law. In a group, tokens expected at least MIN_EXPECTED times are cells of their own and the rarer ones
share a cell; cells depend on the law and the size of the group alone, never on what was drawn. The statistic is the
sum over groups of the likelihood ratio G = 2 sum O ln(O/E), each divided by Williams' factor (1976), against
chi-square. A token of probability 0 is a failure by itself.

Effect size: total variation distance (TV) between what was drawn and the law, on the cells. Its interval adds and
takes away McDiarmid's bound, and takes away the part of the estimate that is noise. The power is a guarantee: a
deviation of TV t has a noncentrality of at least 4 n t^2 (Cauchy-Schwarz), whatever its shape.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize, stats

from paceline.verify.law import Array

MIN_EXPECTED = 5.0
MAX_CELLS = 16  # of one group: more cells spread the power thin
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class GroupFit:
    """One group against its law. cells: token ids (None: all the others), expected and observed counts."""

    num_samples: int
    statistic: float
    degrees: int
    variation: float  # estimate of TV on the cells
    noise: float  # what that estimate is on average when the law is right, at most
    impossible: tuple[tuple[int, int], ...]  # tokens drawn although their probability is 0, and how often
    cells: tuple[tuple[int | None, float, int], ...]


@dataclass(frozen=True, slots=True)
class Fit:
    """All groups of one place. p_value: probability of so large a statistic when every law is right."""

    num_samples: int
    num_groups: int
    statistic: float
    degrees: int
    p_value: float
    variation: float
    variation_low: float
    variation_high: float
    num_impossible: int


def fit_group(counts: Mapping[int, int], candidates: Sequence[Array]) -> GroupFit:
    """The candidate law that fits best is taken: they differ only by rounding at an edge."""
    return min(
        (_fit(counts, law) for law in candidates),
        key=lambda fit: (sum(seen for _, seen in fit.impossible), fit.statistic),
    )


def _fit(counts: Mapping[int, int], law: Array) -> GroupFit:
    num_samples = sum(counts.values())
    own = _own_cells(law, num_samples)
    expected = [float(law[token]) * num_samples for token in own]
    observed = [counts.get(token, 0) for token in own]
    cells: list[tuple[int | None, float, int]] = [*zip(own, expected, observed, strict=True)]
    rest = num_samples - sum(expected)
    if rest >= MIN_EXPECTED or not own:
        cells.append((None, rest, num_samples - sum(observed)))
    elif len(own) < np.count_nonzero(law) or sum(observed) < num_samples:
        _, last, seen = cells[-1]  # too rare to stand alone: with the rarest of the others
        cells[-1] = (None, last + rest, seen + num_samples - sum(observed))
    return GroupFit(
        num_samples=num_samples,
        statistic=_statistic(cells, num_samples),
        degrees=len(cells) - 1,
        variation=sum(abs(seen - wanted) for _, wanted, seen in cells) / (2 * num_samples),
        noise=sum(math.sqrt(wanted * (1 - wanted / num_samples)) for _, wanted, _ in cells if wanted < num_samples)
        / (2 * num_samples),
        impossible=tuple(sorted((token, seen) for token, seen in counts.items() if law[token] == 0.0)),
        cells=tuple(cells),
    )


def _own_cells(law: Array, num_samples: int) -> list[int]:
    """Tokens expected often enough, likeliest first."""
    frequent = np.flatnonzero(law * num_samples >= MIN_EXPECTED)
    ordered = frequent[np.argsort(-law[frequent], kind="stable")]
    return [int(token) for token in ordered[: MAX_CELLS - 1]]


def _statistic(cells: Sequence[tuple[int | None, float, int]], num_samples: int) -> float:
    if len(cells) < 2:
        return 0.0
    g = 2.0 * sum(seen * math.log(seen / wanted) for _, wanted, seen in cells if seen)
    inverse = sum(num_samples / wanted for _, wanted, _ in cells)
    return g / (1.0 + (inverse - 1.0) / (6.0 * num_samples * (len(cells) - 1)))


def combine(groups: Sequence[GroupFit]) -> Fit:
    num_samples = sum(group.num_samples for group in groups)
    statistic, degrees = sum(group.statistic for group in groups), sum(group.degrees for group in groups)
    num_impossible = sum(seen for group in groups for _, seen in group.impossible)
    variation = _mean([group.variation for group in groups], groups)
    noise = _mean([group.noise for group in groups], groups)
    bound = math.sqrt(math.log(2.0 / (1.0 - CONFIDENCE)) / (2.0 * num_samples)) if num_samples else 1.0
    return Fit(
        num_samples=num_samples,
        num_groups=len(groups),
        statistic=statistic,
        degrees=degrees,
        p_value=0.0 if num_impossible else float(stats.chi2.sf(statistic, degrees)) if degrees else 1.0,
        variation=variation,
        variation_low=max(0.0, variation - noise - bound),
        variation_high=min(1.0, variation + bound),
        num_impossible=num_impossible,
    )


def _mean(values: Sequence[float], groups: Sequence[GroupFit]) -> float:
    total = sum(group.num_samples for group in groups)
    return sum(v * group.num_samples for v, group in zip(values, groups, strict=True)) / total if total else 0.0


def detectable_variation(num_samples: int, degrees: int, level: float, power: float) -> float | None:
    """The TV from which on an error is found at `level` with probability `power` or more; None: never."""
    if degrees == 0 or num_samples == 0:
        return None
    critical = stats.chi2.isf(level, degrees)

    def missing(noncentrality: float) -> float:
        return float(stats.ncx2.sf(critical, degrees, noncentrality)) - power

    high = 2.0 * critical + 100.0
    noncentrality = optimize.brentq(missing, 1e-9, high)
    variation = 0.5 * math.sqrt(noncentrality / num_samples)
    return variation if variation < 1.0 else None


def holm(p_values: Sequence[float], alpha: float) -> list[bool]:
    """Which hypotheses fall, with at most probability `alpha` that any true one does (Holm 1979)."""
    rejected = [False] * len(p_values)
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    for rank, index in enumerate(order):
        if p_values[index] > alpha / (len(p_values) - rank):
            break
        rejected[index] = True
    return rejected


def by_prefix(samples: Sequence[Sequence[int]], place: int) -> dict[tuple[int, ...], Counter[int]]:
    """Tokens at a place of the samples that reach it, counted by what stands before."""
    groups: dict[tuple[int, ...], Counter[int]] = {}
    for tokens in samples:
        if len(tokens) > place:
            groups.setdefault(tuple(tokens[:place]), Counter())[tokens[place]] += 1
    return groups
