"""StepCosts: how long a step takes, by its rows and their drafts. What the controller weighs tokens against.

Two kinds of machine, two models of cost, one question (`seconds`):

PaddedCosts   captured steps: one graph per (padded rows, K). A row with fewer drafts costs as much as one with K.
RaggedCosts   eager steps, a CPU's: every draft that is left out saves its share of each pass.

Seconds only matter relative to each other: a machine that is busy slows everything, and that changes no decision.
Live timings therefore correct a cell of a table by how far it stands out from the others (`Refresher`): on a GPU, which
stamps its steps itself, nearly all of a surprise is the cell's; on a CPU that others use most of it is the machine's.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence as Seq

import msgspec

from paceline.engine.curves import Curve, Departures, rising

_MOST_SURPRISE = math.log(3.0)  # a step that takes thrice as long was disturbed
_MOST_WRONG = math.log(1.25)  # a CPU's step, as measured at start
_DOUBT = 0.06  # that a step may be better than it was measured, as long as no live one has shown it
SURE = 4  # live steps
_ALIKE = 0.75  # of a captured step's error, which its neighbours that no live step has timed are thought to share
_HELD_BY = 6  # live steps that a CPU's measured time counts for: one of them says little on a busy machine


class Refresher(msgspec.Struct):
    """`common`: how much slower the machine is than when the table was measured, as a logarithm.

    common_rate, cell_rate: shares of a step's surprise that go to the machine and to the step's own cell.
    """

    common_rate: float
    cell_rate: float
    common: float = 0.0
    seen: int = -1  # steps; below 0: not counted, the machine is as it was

    def correction(self, expected: float, observed: float, cell_rate: float = 0.0) -> float:
        """Factor for the cell that said `expected`. `cell_rate`: instead of the usual one, if it is larger."""
        if expected <= 0.0 or observed <= 0.0:
            return 1.0
        beyond = math.log(observed / expected) - self.common
        beyond = min(max(beyond, -_MOST_SURPRISE), _MOST_SURPRISE)
        if self.seen < 0:
            self.common += self.common_rate * beyond
            return math.exp(max(self.cell_rate, cell_rate) * beyond)
        self.seen += 1
        moved = max(self.common_rate, 1.0 / self.seen) * beyond  # how busy the machine is must be learnt first
        self.common += moved
        return math.exp(max(self.cell_rate, cell_rate) * min(max(beyond - moved, -_MOST_WRONG), _MOST_WRONG))


class PaddedCosts(msgspec.Struct, tag="padded"):
    """seconds[size][k]: a step of sizes[size] rows with draft_counts[k] drafts each, at `context` positions a row.

    target_position, draft_position   seconds that one more position of one row adds to a pass
    resume_seconds, resume_token      of the eager step in which drafts catch up, and of each token they read
    live[size][k]                     live steps that have corrected the cell
    """

    sizes: list[int]
    draft_counts: list[int]
    table: list[list[float]]
    context: float = 0.0
    target_position: float = 0.0
    draft_position: float = 0.0
    resume_seconds: float = 0.0
    resume_token: float = 0.0
    refresher: Refresher = msgspec.field(default_factory=lambda: Refresher(0.01, 0.05))
    live: list[list[int]] = []

    def __post_init__(self) -> None:
        """More rows or more drafts never take less time; noise may say so."""
        self.table = [rising(row) for row in self.table]
        columns = [rising(column) for column in zip(*self.table, strict=True)]
        self.table = [list(row) for row in zip(*columns, strict=True)]
        self.live = self.live or [[0] * len(row) for row in self.table]

    def doubt(self, num_rows: int, k: int) -> float:
        """How much better than measured the step may be, as a share. A few runs at start differ from the load that
        follows by some per cent, and a cell that only seems worse would never be tried."""
        size, column = self._cell(num_rows, k)
        return _doubt(self.live[size][column])

    def seconds(self, num_rows: int, k: int, positions: float) -> float:
        """`positions`: of all rows together. `k` is one of draft_counts, or is rounded up to one."""
        size, column = self._cell(num_rows, k)
        return self.table[size][column] + self._reading(num_rows, k, positions)

    def _cell(self, num_rows: int, k: int) -> tuple[int, int]:
        size = min(bisect_left(self.sizes, num_rows), len(self.sizes) - 1)
        return size, min(bisect_left(self.draft_counts, k), len(self.draft_counts) - 1)

    def _reading(self, num_rows: int, k: int, positions: float) -> float:
        return (positions - num_rows * self.context) * (self.target_position + k * self.draft_position)

    def catch_up(self, tokens: int) -> float:
        """Seconds before drafts that lag by `tokens` in all can go on."""
        return self.resume_seconds + tokens * self.resume_token if tokens else 0.0

    def refresh(self, counts: Seq[int], positions: float, draft_seconds: float, other_seconds: float) -> None:
        """One captured step with these drafts a row took so long."""
        k = max(counts, default=0)
        size, column = self._cell(len(counts), k)
        reading = self._reading(len(counts), k, positions)
        seconds = draft_seconds + other_seconds - reading
        row, live = self.table[size], self.live[size]
        factor = self.refresher.correction(row[column], seconds, cell_rate=1.0 / (live[column] + 2))
        live[column] += 1
        row[column] *= factor
        for other, seen in enumerate(live):  # steps of as many rows were measured in one go, and are wrong alike
            row[other] *= 1.0 if seen else factor**_ALIKE
        for other, value in enumerate(row):  # never falling
            row[other] = min(value, row[column]) if other < column else max(value, row[column])


def _doubt(live: int) -> float:
    """After so many live steps the cell is the mean of those and of the measured one, whose error fades so."""
    return _DOUBT / (live + 1) if live < SURE else 0.0


class RaggedCosts(msgspec.Struct, tag="ragged"):
    """A step's parts: (verify(tokens) + rows * row_seconds) * departure + padding * padding_seconds + the draft's
    passes, each draft(tokens it reads).

    target_position, draft_position   seconds that one more position of one row adds to a pass
    padding_seconds                   of a query that attention computes since another row has more: see `padding`
    departures                        what the steps that were measured, at start and live, take beside that
    """

    verify: Curve
    draft: Curve
    row_seconds: float = 0.0
    context: float = 0.0
    target_position: float = 0.0
    draft_position: float = 0.0
    refresher: Refresher = msgspec.field(default_factory=lambda: Refresher(0.1, 0.02, seen=0))
    padding_seconds: float = 0.0
    departures: Departures = msgspec.field(default_factory=Departures.none)

    def doubt(self, num_rows: int, k: int) -> float:
        """As for captured steps, of a step in which all rows have k drafts."""
        line, place = self.departures.nearest(num_rows, num_rows * (k + 1))
        return _doubt(self.departures.live[line][place])

    def seconds(self, num_rows: int, active: Seq[int], positions: float, *, lag: int = 0, others: int = 0) -> float:
        """active[j]: rows that draft more than j tokens. lag: tokens the draft must read besides. others: tokens of
        rows that prefill."""
        padded = padding(num_rows, active)
        return self.verifying(num_rows, sum(active) + others, positions, padded) + self.drafting(active, lag)

    def verifying(self, num_rows: int, more_tokens: int, positions: float, padded: int = 0) -> float:
        reading = (positions - num_rows * self.context) * self.target_position
        own = max(0.0, num_rows * self.row_seconds + reading)  # rows of few positions cost less than the measured ones
        tokens = num_rows + more_tokens
        parts = self.verify(tokens) + own
        return parts * self.departures.factor(num_rows, tokens) + padded * self.padding_seconds

    def drafting(self, active: Seq[int], lag: int = 0) -> float:
        if not active or not active[0]:
            return 0.0
        return self.draft(2 * active[0] + lag) + sum(self.draft(rows) for rows in active[1:] if rows)

    def refresh(
        self,
        counts: Seq[int],
        positions: float,
        draft_seconds: float,
        other_seconds: float,
        made: Seq[int] | None = None,
    ) -> None:
        """One step of decoding rows took so long; `other_seconds`: without the draft's passes. `made`: of the drafts,
        those that the draft model made; None: all."""
        padded = padding(len(counts), active_rows(counts))
        self._correct(
            len(counts), sum(counts), self.verifying(len(counts), sum(counts), positions, padded), other_seconds
        )
        active = active_rows(counts if made is None else made)
        if active and draft_seconds > 0.0:
            correction = self.refresher.correction(self.drafting(active), draft_seconds)
            for rows in (2 * active[0], *active[1:]):
                self.draft.scale(rows, correction ** (1.0 / len(active)))

    def _correct(self, num_rows: int, more_tokens: int, expected: float, observed: float) -> None:
        """The target's pass took so long. More tokens of as many rows never take less time."""
        departures = self.departures
        line, place = departures.nearest(num_rows, num_rows + more_tokens)
        live, factors = departures.live[line], departures.factors[line]
        factors[place] *= self.refresher.correction(expected, observed, cell_rate=1.0 / (live[place] + _HELD_BY))
        live[place] += 1
        rows = departures.rows[line]
        parts = [self.verify(rows * share) + rows * self.row_seconds for share in departures.per_row[line]]
        for other, seconds in enumerate(parts):
            level = factors[place] * parts[place] / seconds
            factors[other] = min(factors[other], level) if other < place else max(factors[other], level)


StepCosts = PaddedCosts | RaggedCosts


def active_rows(counts: Seq[int]) -> list[int]:
    """[rows that draft more than j tokens] for j = 0, 1, ... while there are any."""
    return [sum(count > place for count in counts) for place in range(max(counts, default=0))]


def padding(num_rows: int, active: Seq[int]) -> int:
    """Queries that are computed and dropped, where rows of different numbers of drafts share an attention."""
    return num_rows * len(active) - sum(active)
