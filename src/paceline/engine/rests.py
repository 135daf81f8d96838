"""Rests: since when a batch, or a row of a ragged one, does not draft, and the probes that question it.

Without drafts there is no news of them. So now and then a few rows draft for PROBE_STEPS steps, at most for
PROBE_SHARE of the time; after every probe that changes nothing the next one waits twice as long. A rest that begins
with few rows or for acceptance may be bad luck, and is dear if it was: its first probe comes early.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from paceline.engine.goodput import Choice, DraftingRow
from paceline.engine.step_costs import PaddedCosts, StepCosts

PROBE_STEPS = 6
PROBE_ROWS = 8  # at most
_LEAST_PROBE_ROWS = 4  # of captured steps, most of whose price is the same for one row as for all
PROBE_SHARE = 0.01  # of the time that probes may take
LEAST_WAIT, MOST_WAIT = 48, 1536  # steps between probes, if they are cheap enough
MOST_TEXT_WAIT = 192  # ... where it is the text that is hard to draft for, and not the load
EARLY_WAIT = 16  # steps to the first probe of a rest that may have been bad luck
_EARLY_COST = 2.0  # plain steps that it may cost
LEAST_ROW_WAIT, MOST_ROW_WAIT = 24, 384
_LOST_PROBE = 12  # steps: a probe whose rows found nothing to draft is over


@dataclass(slots=True)
class Rest:
    """wait: steps to the next probe, doubled by each one, up to `most_wait`."""

    wait: int
    most_wait: int = MOST_WAIT
    begun_with: int = 1  # rows
    steps: int = 0  # since it began, or since the last probe
    probe_left: int = 0  # steps with drafts that the probe still wants
    probe_age: int = 0
    num_rows: int = 0  # when it was thought over
    unchecked: int = 0  # steps since
    num_probes: int = 0
    has_news: bool = False  # a probe is over and has changed nothing
    probed: frozenset[int] = frozenset()  # the rows of the probe

    @property
    def is_probing(self) -> bool:
        return self.probe_left > 0

    def start_probe(self) -> None:
        self.probe_left, self.probe_age = PROBE_STEPS, 0
        self.num_probes += 1

    def end_step(self, *, has_drafted: bool) -> None:
        self.steps += 1
        if not self.is_probing:
            return
        self.probe_age += 1
        self.probe_left -= has_drafted
        if self.probe_left == 0 or self.probe_age >= _LOST_PROBE:
            self.probe_left, self.steps = 0, 0
            self.wait = max(self.wait, min(2 * self.wait, self.most_wait))
            self.has_news = True


class RowRests:
    """Single rows of a ragged batch that rest while others draft."""

    def __init__(self) -> None:
        self._rests: dict[int, Rest] = {}

    def with_probes(self, rows: Seq[DraftingRow], choice: Choice) -> Choice:
        counts = list(choice.counts)
        for index, row in enumerate(rows):
            rest = self._rests.get(row.seq_id)
            if counts[index] or not row.most:
                if rest is not None and not rest.is_probing:
                    del self._rests[row.seq_id]
                continue
            if rest is None:
                rest = self._rests[row.seq_id] = Rest(LEAST_ROW_WAIT, MOST_ROW_WAIT)
            if rest.is_probing or rest.steps >= rest.wait:
                if not rest.is_probing:
                    rest.start_probe()
                counts[index] = 1
        return Choice(counts, choice.tokens, choice.seconds)

    def end_step(self, drafted: Iterable[tuple[int, bool]]) -> None:
        """Rows of a committed step, and whether the draft model drafted for them."""
        if self._rests:
            for seq_id, has_drafted in drafted:
                if (rest := self._rests.get(seq_id)) is not None:
                    rest.end_step(has_drafted=has_drafted)

    def forget(self, seq_id: int) -> None:
        self._rests.pop(seq_id, None)

    def clear(self) -> None:
        self._rests.clear()


def affordable(rows: Seq[DraftingRow], costs: StepCosts, step: float, rest: Rest) -> frozenset[int]:
    """The rows of a probe that takes no more than PROBE_SHARE of the time since the last one; none: not yet.

    A draft that has rested must read all it has missed. That cost grows with the rest, so a probe takes few rows,
    those with the least to read.
    """
    if rest.steps < rest.wait:
        return frozenset()
    able = sorted((row for row in rows if row.most), key=lambda row: (row.lag, row.seq_id))[:PROBE_ROWS]
    is_early = rest.num_probes == 0 and rest.wait == EARLY_WAIT
    least = min(len(able), _LEAST_PROBE_ROWS) if isinstance(costs, PaddedCosts) else 1
    budget = (PROBE_SHARE * rest.steps + _EARLY_COST * is_early) * step
    for few in range(len(able), least - 1, -1):
        if _probe_seconds(rows, able[:few], costs, step) <= budget:
            return frozenset(row.seq_id for row in able[:few])
    return frozenset(row.seq_id for row in able[:least]) if rest.steps >= MOST_WAIT else frozenset()


def _probe_seconds(rows: Seq[DraftingRow], few: Seq[DraftingRow], costs: StepCosts, step: float) -> float:
    positions, lag = sum(row.positions for row in rows), sum(row.lag for row in few)
    if isinstance(costs, PaddedCosts):
        drafting, catching_up = costs.seconds(len(rows), 1, positions), costs.catch_up(lag)
    else:
        drafting = costs.seconds(len(rows), (len(few),), positions)
        catching_up = costs.draft(2 * len(few) + lag) - costs.draft(2 * len(few))
    return catching_up + PROBE_STEPS * (drafting - step)
