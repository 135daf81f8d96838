"""StepCosts: how long a step takes, by its rows and their drafts. What the controller weighs tokens against.

Two kinds of machine, two models of cost, one question (`seconds`):

PaddedCosts   captured steps: one graph per form (padded rows, K, and whether all or half of the rows may draft). A row
              that may draft costs as much as if it had K drafts.
RaggedCosts   eager steps, a CPU's: every draft that is left out saves its share of each pass.

Seconds only matter relative to each other: a machine that is busy slows everything, and that changes no decision.
Live timings therefore correct a cell of a table by how far it stands out from the others (`Refresher`): on a GPU, which
stamps its steps itself, nearly all of a surprise is the cell's; on a CPU that others use most of it is the machine's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as Seq
from statistics import median_low

import msgspec

from paceline.engine.curves import Curve, Departures, rising
from paceline.step_forms import Form, StepForms

_MOST_SURPRISE = math.log(3.0)  # a step that takes thrice as long was disturbed
_MOST_SLOWER = math.log(1.1)  # ... of captured steps, whose times hold: what is slower than that was disturbed
_MOST_WRONG = math.log(1.25)  # a CPU's step, as measured at start
_DOUBT = 0.06  # that a step may be better than it was measured, as long as no live one has shown it
_FIRST_DOUBT = 0.12  # ... of a captured step against another with drafts: a cell so wrong was met, and a try is a step
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
    most_slower: float = _MOST_SURPRISE  # surprise of a step that counts

    def correction(self, expected: float, observed: float, cell_rate: float = 0.0) -> float:
        """Factor for the cell that said `expected`. `cell_rate`: instead of the usual one, if it is larger."""
        if expected <= 0.0 or observed <= 0.0:
            return 1.0
        beyond = math.log(observed / expected) - self.common
        beyond = min(max(beyond, -_MOST_SURPRISE), self.most_slower)
        if self.seen < 0:
            self.common += self.common_rate * beyond
            return math.exp(max(self.cell_rate, cell_rate) * beyond)
        self.seen += 1
        moved = max(self.common_rate, 1.0 / self.seen) * beyond  # how busy the machine is must be learnt first
        self.common += moved
        return math.exp(max(self.cell_rate, cell_rate) * min(max(beyond - moved, -_MOST_WRONG), _MOST_WRONG))


class PaddedCosts(msgspec.Struct, tag="padded"):
    """table[size][k]: seconds of a step of sizes[size] rows with draft_counts[k] drafts each, at `context` positions a
    row. split_table[size][k]: of split_sizes[size] rows, half of which have split_counts[k] drafts.

    target_position, draft_position   seconds that one more position of one row adds to a pass
    resume_seconds, resume_token      of the eager pass in which drafts catch up, and of each token they read
    live[size][k], split_live         live steps that have corrected the cell
    firsts["size,k,drafting"]         what the cell said before the first live step, and what the first SURE took
    """

    sizes: list[int]
    draft_counts: list[int]
    table: list[list[float]]
    context: float = 0.0
    target_position: float = 0.0
    draft_position: float = 0.0
    resume_seconds: float = 0.0
    resume_token: float = 0.0
    refresher: Refresher = msgspec.field(default_factory=lambda: Refresher(0.01, 0.05, most_slower=_MOST_SLOWER))
    live: list[list[int]] = []
    split_sizes: list[int] = []
    split_counts: list[int] = []
    split_table: list[list[float]] = []
    split_live: list[list[int]] = []
    firsts: dict[str, list[float]] = {}

    def __post_init__(self) -> None:
        """More rows or more drafts never take less time; noise may say so."""
        self.table, self.split_table = _rising_both_ways(self.table), _rising_both_ways(self.split_table)
        self.live = self.live or [[0] * len(row) for row in self.table]
        self.split_live = self.split_live or [[0] * len(row) for row in self.split_table]

    @staticmethod
    def measured(forms: StepForms, seconds: Callable[[Form], float], context: float = 0.0) -> PaddedCosts:
        return PaddedCosts(
            forms.sizes, forms.draft_counts,
            [[seconds(Form(size, k, size)) for k in forms.draft_counts] for size in forms.sizes],
            context=context, split_sizes=forms.split_sizes, split_counts=forms.split_counts,
            split_table=[[seconds(Form(size, k, size // 2)) for k in forms.split_counts] for size in forms.split_sizes],
        )  # fmt: skip

    def of(self, *, draws: bool) -> PaddedCosts:
        """A captured step computes the laws of all its rows in any case."""
        return self

    @property
    def forms(self) -> StepForms:
        return StepForms(self.sizes, self.draft_counts, self.split_sizes, self.split_counts)

    def doubt(self, num_rows: int, k: int, num_drafting: int | None = None) -> float:
        """How much better than measured the step may be, as a share. A few runs at start differ from the load that
        follows by some per cent, and a cell that only seems worse would never be tried."""
        _, live, column = self._cell(self._form(num_rows, k, num_drafting))
        return _doubt(live[column])

    def first_doubt(self, num_rows: int, k: int) -> float:
        """The same among steps with drafts: one that no live step has timed at all may be tried for less."""
        _, live, column = self._cell(self._form(num_rows, k, None))
        return _doubt(live[column]) if live[column] else _FIRST_DOUBT

    def seconds(self, num_rows: int, k: int, positions: float, num_drafting: int | None = None) -> float:
        """`positions`: of all rows together. `k` is one of draft_counts, or is rounded up to one. `num_drafting`: rows
        that have drafts; None: all."""
        form = self._form(num_rows, k, num_drafting)
        row, _, column = self._cell(form)
        return row[column] + self._reading(num_rows, form, positions)

    def _form(self, num_rows: int, k: int, num_drafting: int | None) -> Form:
        return self.forms.smallest(num_rows, k, num_rows if num_drafting is None else num_drafting)

    def _cell(self, form: Form) -> tuple[list[float], list[int], int]:
        """The row of a table, of its live steps, and the column."""
        if form.is_split:
            size, column = self.split_sizes.index(form.size), self.split_counts.index(form.k)
            return self.split_table[size], self.split_live[size], column
        size, column = self.sizes.index(form.size), self.draft_counts.index(form.k)
        return self.table[size], self.live[size], column

    def _reading(self, num_rows: int, form: Form, positions: float) -> float:
        drafting = form.k * form.drafting / form.size
        return (positions - num_rows * self.context) * (self.target_position + drafting * self.draft_position)

    def catch_up(self, tokens: int) -> float:
        """Seconds before drafts that lag by `tokens` in all can go on."""
        return self.resume_seconds + tokens * self.resume_token if tokens else 0.0

    def refresh(self, counts: Seq[int], positions: float, draft_seconds: float, other_seconds: float) -> None:
        """One captured step with these drafts a row took so long.

        Until SURE of them are known, a cell is the median of these and of what was measured, the lower of two. A mean
        would believe the first: a plain step of 128 rows that was disturbed by a tenth had all of them draft for
        nothing from then on, since no other plain step was made to show it.
        """
        form = self._form(len(counts), max(counts, default=0), sum(count > 0 for count in counts))
        seconds = draft_seconds + other_seconds - self._reading(len(counts), form, positions)
        row, live, column = self._cell(form)
        factor = self.refresher.correction(row[column], seconds)
        if live[column] < SURE and seconds > 0.0:
            known = self.firsts.setdefault(f"{form.size},{form.k},{form.drafting}", [row[column]])
            known.append(seconds / math.exp(self.refresher.common))
            factor = median_low(known) / row[column]
        live[column] += 1
        row[column] *= factor
        for other, seen in enumerate(live):  # steps of as many rows were measured in one go, and are wrong alike
            row[other] *= 1.0 if seen else factor**_ALIKE
        for other, value in enumerate(row):  # never falling
            row[other] = min(value, row[column]) if other < column else max(value, row[column])


def _rising_both_ways(table: list[list[float]]) -> list[list[float]]:
    columns = [rising(column) for column in zip(*map(rising, table), strict=True)]
    return [list(row) for row in zip(*columns, strict=True)]


def _doubt(live: int) -> float:
    """After so many live steps the cell is made of those and of the measured one, whose error fades so."""
    return _DOUBT / (live + 1) if live < SURE else 0.0


class RaggedCosts(msgspec.Struct, tag="ragged"):
    """A step's parts: (verify(tokens) + rows * row_seconds) * departure + padding * padding_seconds + the draft's
    passes, each draft(tokens it reads).

    target_position, draft_position   seconds that one more position of one row adds to a pass
    padding_seconds                   of a query that attention computes since another row has more: see `padding`
    departures                        what the steps that were measured, at start and live, take beside that
    drawn                             the same of steps in which a row draws its tokens: laws take time for each place,
                                      and the draft's passes are calls of their own. None: not told apart
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
    drawn: RaggedCosts | None = None

    def of(self, *, draws: bool) -> RaggedCosts:
        """Those of a step in which a row draws, or none does."""
        return self.drawn if draws and self.drawn is not None else self

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

    def verifying_each(self, num_rows: int, more_tokens: range, positions: float) -> list[float]:
        """`verifying` without padding, for each of consecutive numbers of tokens."""
        own = max(0.0, num_rows * self.row_seconds + (positions - num_rows * self.context) * self.target_position)
        sizes = range(num_rows + more_tokens.start, num_rows + more_tokens.stop)
        factors = self.departures.factors_of(num_rows, sizes)
        return [(self.verify(size) + own) * factor for size, factor in zip(sizes, factors, strict=True)]

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
