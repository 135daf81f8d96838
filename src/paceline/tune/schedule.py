"""From costs and acceptance to a K for every batch size. Pure arithmetic: nothing runs here.

K is the one that commits the most tokens a second, B * (1 + d * (S_1 + ... + S_K)) / T(B, K), with d the share of
passes that have drafts (an n-gram has none where the text does not repeat), S_j the share of those whose first j drafts
were all kept, and T the measured seconds of such a step.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from paceline.engine.step_costs import PaddedCosts, StepCosts

WORTH = 1.01  # a K above 0 must gain so much: less is within what was measured


@dataclass(frozen=True, slots=True)
class BestK:
    """tokens a pass and a row, the step's seconds, and the speed against K = 0, all at `batch` rows."""

    batch: int
    k: int
    tokens_per_pass: float
    seconds: float
    gain: float


def best_by_batch(
    costs: StepCosts, survival: Seq[float], batches: Seq[int], *, positions: float, budget: int, drafting: float = 1.0
) -> list[BestK]:
    """`positions`: that a row attends to. `budget`: tokens of the target in a step, at most. `drafting`: share of a
    row's passes that have drafts."""
    return [_best(costs, survival, batch, positions, budget, drafting) for batch in batches]


def _best(costs: StepCosts, survival: Seq[float], batch: int, positions: float, budget: int, drafting: float) -> BestK:
    plain = _seconds(costs, batch, 0, positions)
    best = BestK(batch, 0, 1.0, plain, 1.0)
    counts = costs.draft_counts if isinstance(costs, PaddedCosts) else range(len(survival) + 1)
    for k in counts:
        if k == 0 or k > len(survival) or batch * (k + 1) > budget:
            continue
        tokens = 1.0 + drafting * sum(survival[:k])
        share = _share_of_cost(costs, batch, drafting)
        seconds = share * _seconds(costs, batch, k, positions) + (1.0 - share) * plain
        gain = tokens * plain / seconds
        if gain > max(best.gain, WORTH):
            best = BestK(batch, k, tokens, seconds, gain)
    return best


def _share_of_cost(costs: StepCosts, batch: int, drafting: float) -> float:
    """How much of the way from a plain step to one in which all rows draft. A captured step has K drafts' places as
    soon as one of its rows drafts; an eager one pays by the row."""
    return 1.0 - (1.0 - drafting) ** batch if isinstance(costs, PaddedCosts) else drafting


def _seconds(costs: StepCosts, batch: int, k: int, positions: float) -> float:
    if isinstance(costs, PaddedCosts):
        return costs.seconds(batch, k, batch * positions)
    return costs.seconds(batch, [batch] * k, batch * positions)


def ranges(found: Seq[BestK]) -> list[tuple[int, int, int]]:
    """(first batch, last batch, K), joined where K is the same; `found` has every batch from 1 on."""
    joined: list[tuple[int, int, int]] = []
    for entry in found:
        if joined and joined[-1][2] == entry.k:
            joined[-1] = (joined[-1][0], entry.batch, entry.k)
        else:
            joined.append((entry.batch, entry.batch, entry.k))
    return joined


def shown_batches(largest: int) -> list[int]:
    """1, 2, 4, ... and `largest`."""
    sizes = [1 << power for power in range(largest.bit_length()) if 1 << power < largest]
    return [*sizes, largest]
