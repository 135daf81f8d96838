"""Goodput: the drafts a step should have, so that it commits the most tokens a second.

The rule is TurboSpec's (Liu et al. 2024, arXiv 2406.14066): maximise sum of expected tokens / T(step). A row with k
drafts commits 1 + S_1 + ... + S_k tokens, S_j the probability that its first j drafts are all kept.

padded   a step costs what its largest K costs, for every row that may draft: one number is chosen. Where all rows may,
         all do; where half of them may, those that promise most.
ragged   each draft costs its share, and rows of different lengths some padding. Drafts of all rows are taken in the
         order of their S: of the sets that this order makes, for every largest depth, the one with the highest rate.
         Within a row S falls with the place, so a set never has a draft without those before it. (One price a token
         for all rows: the Lagrangian view.) Beside them the sets in which all rows have as many, which need no padding.

Rows whose draft has fallen behind pay for catching up once; that is spread over HORIZON steps, or fewer where a row is
soon to draft from its text again (spells.py).
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from paceline.engine.step_costs import PaddedCosts, RaggedCosts

HORIZON = 64.0  # steps that a decision is expected to hold
_HOPELESS = 0.75  # of the best rate: further drafts, all of them less likely, do not make up for that


@dataclass(frozen=True, slots=True)
class DraftingRow:
    """A decoding row, before it is known how many drafts it gets.

    most       drafts that it may have
    positions  that it attends to
    lag        tokens that the draft must read before it can go on, beyond the two that it always reads
    is_fixed   it gets all of them, whatever that costs
    text       chances that the first j tokens which its own text suggests are kept, j = 1, 2, ...; empty: none found
    gain       factor of the chance that the draft model's first token is kept here
    by_text    its drafts are those: `most` is their number, and the draft model makes no pass for them
    spell      steps that the draft is expected to go on once it has caught up
    draws      a law is computed for its tokens, which takes a CPU time (see RaggedCosts.drawn)
    """

    seq_id: int
    most: int
    positions: int = 0
    lag: int = 0
    is_fixed: bool = False
    text: tuple[float, ...] = ()
    gain: float = 1.0
    by_text: bool = False
    spell: float = HORIZON
    draws: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """counts: drafts by row. tokens, seconds: expected of the step; `seconds` has its share of catching up."""

    counts: list[int]
    tokens: float
    seconds: float

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds if self.seconds > 0.0 else 0.0


def plain(rows: Seq[DraftingRow], costs: PaddedCosts | RaggedCosts, others: int = 0) -> Choice:
    """Nobody drafts."""
    positions = sum(row.positions for row in rows)
    if isinstance(costs, PaddedCosts):
        seconds = costs.seconds(len(rows), 0, positions)
    else:
        seconds = costs.seconds(len(rows), (), positions, others=others)
    return Choice([0] * len(rows), float(len(rows)), seconds)


def padded_choices(
    rows: Seq[DraftingRow], survivals: Seq[Seq[float]], costs: PaddedCosts, most: int
) -> dict[int, Choice]:
    """By K, for every captured K from what fixed rows need to `most`. survivals[row][j-1] = S_j."""
    positions = sum(row.positions for row in rows)
    lag = sum(row.lag for row in rows if row.most)
    catching_up = costs.catch_up(lag) / HORIZON
    choices = {0: plain(rows, costs)}
    able = sum(row.most > 0 for row in rows)
    deepest = max((row.most for row in rows), default=0)
    least = max((row.most for row in rows if row.is_fixed), default=0)
    tokens, place = float(len(rows)), 0
    for k in costs.draft_counts:
        if k == 0 or k > most or place >= deepest:
            continue
        while place < k:
            tokens += sum(s[place] for s, row in zip(survivals, rows, strict=True) if row.most > place)
            place += 1
        seconds = costs.seconds(len(rows), k, positions, able) + catching_up
        choices[k] = Choice([min(k, row.most) for row in rows], tokens, seconds)
    return {k: choice for k, choice in choices.items() if k >= least} or {max(choices): choices[max(choices)]}


def split_choices(
    rows: Seq[DraftingRow], survivals: Seq[Seq[float]], costs: PaddedCosts, most: int, *, lagging: bool = True
) -> dict[int, Choice]:
    """By K, the steps in which half of the rows may draft: those that promise most, and every fixed one.

    A row whose draft lags comes in if all such rows together pay for catching up within HORIZON steps.
    """
    positions = sum(row.positions for row in rows)
    fixed = [row.most for row in rows if row.is_fixed and row.most]
    choices: dict[int, Choice] = {}
    for k in costs.split_counts:
        form = costs.forms.smallest(len(rows), k, len(fixed))
        if k > most or not form.is_split or k < max(fixed, default=0):
            continue
        gains = [sum(survival[: min(k, row.most)]) for survival, row in zip(survivals, rows, strict=True)]
        able = [index for index, row in enumerate(rows) if row.most]
        first = sorted(able, key=lambda index: (not rows[index].is_fixed, -gains[index]))[: form.drafting]
        seconds = costs.seconds(len(rows), k, positions, len(first))
        tokens = len(rows) + sum(gains[index] for index in first)
        late = [index for index in first if rows[index].lag and not rows[index].is_fixed] if lagging else []
        catching_up = costs.catch_up(sum(rows[index].lag for index in late)) / HORIZON
        won = sum(gains[index] for index in late)
        if late and won * seconds < catching_up * (tokens - won):
            kept = set(first) - set(late)
            first, tokens, catching_up = [index for index in first if index in kept], tokens - won, 0.0
        counts = [0] * len(rows)
        for index in first:
            counts[index] = min(k, rows[index].most)
        if first:
            choices[k] = Choice(counts, tokens, seconds + catching_up)
    return choices


def best_ragged(
    rows: Seq[DraftingRow],
    survivals: Seq[Seq[float]],
    costs: RaggedCosts,
    *,
    others: int = 0,
    nobody: Choice | None = None,
) -> Choice:
    """The best set of drafts; `plain` if no draft pays. `others`: tokens of rows that prefill in the same step.
    `nobody`: that plain choice, where it is known."""
    entries = sorted(
        (
            (not row.is_fixed, -survivals[index][place], place, index)
            for index, row in enumerate(rows)
            for place in range(row.most)
        )
    )
    fixed = sum(row.most for row in rows if row.is_fixed)
    found = [] if fixed else [nobody or plain(rows, costs, others)]
    if not entries:
        return found[0]
    scan = _Scan(rows, costs, others, len(entries))
    shallowest = max([1, *(row.most for row in rows if row.is_fixed)])
    depth = max(row.most for row in rows)
    while depth >= shallowest:
        best = scan.best(entries, depth, fixed)
        found.append(best)
        # Leaving out places that are not taken anyway changes little; the sets of one row are prefixes of the longest.
        depth = min(depth, max(best.counts) or depth) - 1 if len(rows) > 1 else 0
    found += scan.evens(survivals) if len(rows) > 1 else []
    return max(found, key=lambda choice: choice.rate)


class _Scan:
    """Adds drafts one by one and keeps the step's cost up to date. Costs are looked up once a size."""

    def __init__(self, rows: Seq[DraftingRow], costs: RaggedCosts, others: int, num_drafts: int) -> None:
        positions, count = sum(row.positions for row in rows), len(rows)
        self._rows = rows
        self._verify = costs.verifying_each(count, range(others, others + num_drafts + 1), positions)
        self._padding = costs.padding_seconds
        self._draft = [0.0, *(costs.draft(size) for size in range(1, 2 * count + 1))]
        self._lag = [
            (costs.draft(2 + row.lag) - costs.draft(2)) / row.spell if row.lag and row.most else 0.0 for row in rows
        ]
        self._by_text = [row.by_text for row in rows]

    def best(self, entries: Seq[tuple[bool, float, int, int]], depth: int, fixed: int) -> Choice:
        """The best prefix of `entries` (.., -S, place, row), leaving out places from `depth` on; at least `fixed`."""
        draft, verify, lag, padding, by_text = self._draft, self._verify, self._lag, self._padding, self._by_text
        active = [0] * depth
        num_rows, deepest, taken = len(self._rows), 0, 0
        tokens, drafting = float(num_rows), 0.0
        best_rate, best_taken, best = 0.0 if fixed else tokens / verify[0], 0, (tokens, verify[0])
        order: list[int] = []
        for _, lost, place, row in entries:
            if place >= depth:
                continue
            if not by_text[row]:
                makes = active[place]
                active[place] = makes + 1
                if place == 0:
                    drafting += draft[2 * makes + 2] - draft[2 * makes] + lag[row]
                else:
                    drafting += draft[makes + 1] - draft[makes]
            taken += 1
            tokens -= lost  # -S
            order.append(row)
            if place >= deepest:
                deepest = place + 1
            if taken < fixed:
                continue
            rate = tokens / (verify[taken] + drafting + padding * (num_rows * deepest - taken))
            if rate > best_rate:
                best_rate, best_taken, best = rate, taken, (tokens, tokens / rate)
            elif rate < _HOPELESS * best_rate:
                break
        counts = [0] * num_rows
        for row in order[:best_taken]:
            counts[row] += 1
        return Choice(counts, *best)

    def evens(self, survivals: Seq[Seq[float]]) -> list[Choice]:
        """For each K, K drafts for every row that may have as many; fixed rows have all of theirs from the start."""
        rows, draft = self._rows, self._draft
        tokens, drafting, taken = float(len(rows)), 0.0, 0
        made = [0] * (1 + max((row.most for row in rows), default=0))  # by place: rows the draft model drafts for
        found, least = [], max((row.most for row in rows if row.is_fixed), default=0)
        for place in range(len(made) - 1):
            able = [index for index, row in enumerate(rows) if row.most > place]
            made[place] = sum(not rows[index].by_text for index in able)
            tokens += sum(survivals[index][place] for index in able)
            drafting += draft[(2 if place == 0 else 1) * made[place]]
            if place == 0:
                drafting += sum(self._lag[index] for index in able if not rows[index].by_text)
            taken += len(able)
            k = place + 1
            if k >= least:
                seconds = self._verify[taken] + drafting + self._padding * (len(rows) * k - taken)
                found.append(Choice([min(k, row.most) for row in rows], tokens, seconds))
        return found
