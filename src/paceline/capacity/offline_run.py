"""What `paceline bench offline` measures, predicted: decode tokens a second over a whole run, its tail included.

Every sequence emits `output_len` tokens, the first of them in prefill. A pass emits 1 to K+1 tokens at random, so some
sequences finish early and the last ones have the card for themselves: with 128 sequences and K = 3 the last one needs a
tenth more steps than the mean. How many steps a sequence needs is counted exactly, by convolution; the expected number
of sequences still running then says what each step costs. A step's cost is linear in the positions its rows see, so
steps with the same number of (padded) rows are counted together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.bench.acceptance import rate_for_length

Law = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Steps:
    """`count` steps (a mean, so a fraction) of `rows` rows, each of which sees `positions` on average."""

    rows: int
    count: float
    positions: float


def emitted_law(rate: float, k: int) -> Law:
    """[K+1]: probability that a pass emits 1 .. K+1 tokens, if each draft is kept with `rate` after those before it."""
    kept = np.array([rate**i for i in range(k + 1)])
    return np.append(kept[:-1] - kept[1:], kept[-1])


def law_of_length(tokens_per_pass: float, k: int) -> Law:
    """The same for a mean number of tokens a pass."""
    return emitted_law(rate_for_length(tokens_per_pass, k), k)


def unfinished(law: Law, num_tokens: int) -> Law:
    """[S]: the share of sequences that have not emitted `num_tokens` before step s = 0, 1, …; ends at one in 10^6."""
    short = np.zeros(num_tokens)  # by tokens emitted so far
    short[0] = 1.0
    shares = []
    while (left := float(short.sum())) > 1e-6:
        shares.append(left)
        short = np.convolve(short, np.concatenate(([0.0], law)))[:num_tokens]
    return np.array(shares)


def steps_of_run(law: Law, *, batch: int, input_len: int, output_len: int, sizes: Sequence[int]) -> list[Steps]:
    """`sizes`: the numbers of rows that steps are padded to, ascending."""
    mean = float(np.arange(1, len(law) + 1) @ law)
    counts: dict[int, float] = {}
    seen: dict[int, float] = {}
    for step, share in enumerate(unfinished(law, output_len - 1)):
        is_run = 1.0 - (1.0 - share) ** batch  # the probability that somebody is left
        running = max(1, round(batch * share / is_run))
        rows = next((size for size in sizes if size >= running), running)
        counts[rows] = counts.get(rows, 0.0) + is_run
        seen[rows] = seen.get(rows, 0.0) + is_run * (input_len + min(step * mean, output_len) + 1)
    return [Steps(rows, count, seen[rows] / count) for rows, count in counts.items()]


def run_seconds(steps: Sequence[Steps], seconds_of: Callable[[int, float], float]) -> float:
    """`seconds_of(rows, positions)`: of one step."""
    return sum(group.count * seconds_of(group.rows, group.positions) for group in steps)
