"""Hearings: where half of a batch drafts, a few of the others do so now and then, for news of them.

A request whose drafts were bad may draft well by now, and nothing would tell. Those that have been silent for longest
come first. Their draft has to catch up, in a pass of its own; hearings take at most PROBE_SHARE of the time with that.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from paceline.engine.goodput import Choice, DraftingRow
from paceline.engine.rests import PROBE_SHARE, PROBE_STEPS
from paceline.engine.step_costs import PaddedCosts

_ROWS = 4  # of a hearing


class Hearings:
    def __init__(self) -> None:
        self._turn = 0  # of hearings
        self._heard_in: dict[int, int] = {}  # seq_id -> the turn
        self._rows: frozenset[int] = frozenset()
        self._left = 0  # steps of this hearing
        self._seconds = 0.0  # since the last one

    def with_heard(
        self, rows: Seq[DraftingRow], survivals: Seq[Seq[float]], choice: Choice, costs: PaddedCosts
    ) -> Choice:
        """`choice`, of which half of the rows draft, with the rows to be heard in place of the least promising."""
        counts, k = list(choice.counts), max(choice.counts)
        silent = [index for index, row in enumerate(rows) if row.most and not counts[index]]
        if not self._left and not self._begin([rows[index] for index in silent], costs):
            return choice
        heard = [index for index in silent if rows[index].seq_id in self._rows]
        for index in heard:
            counts[index] = min(k, rows[index].most)
        room = costs.forms.smallest(len(rows), k, sum(count > 0 for count in choice.counts)).drafting
        able = (i for i, row in enumerate(rows) if counts[i] and not row.is_fixed and row.seq_id not in self._rows)
        weakest = sorted(able, key=lambda index: survivals[index][0])
        for index in weakest[: max(0, sum(count > 0 for count in counts) - room)]:
            counts[index] = 0
        return Choice(counts, choice.tokens, choice.seconds)

    def _begin(self, silent: Seq[DraftingRow], costs: PaddedCosts) -> bool:
        few = sorted(silent, key=lambda row: (self._heard_in.get(row.seq_id, -1), row.lag, row.seq_id))[:_ROWS]
        if not few or costs.catch_up(sum(row.lag for row in few)) > PROBE_SHARE * self._seconds:
            return False
        self._turn += 1
        self._heard_in |= {row.seq_id: self._turn for row in few}
        self._rows, self._left, self._seconds = frozenset(row.seq_id for row in few), PROBE_STEPS, 0.0
        return True

    def end_step(self, seconds: float) -> None:
        """Of a step in which half of the rows drafted."""
        self._left = max(0, self._left - 1)
        self._seconds += seconds

    def forget(self, seq_id: int) -> None:
        self._heard_in.pop(seq_id, None)
