"""PlainTrials: a few steps without drafts while others draft, to learn what such a step costs.

A step that is never taken is never timed, and K = 0 is not taken as long as its cost, measured at start, says that
drafts pay. Were that too slow by some per cent, everybody would draft for nothing, and nothing would ever show it. So
as long as no live plain step of this size has been timed, and one that is as much better as measurements are wrong
would be the best, a few are tried. They may cost SHARE of the time. How much a larger K may be better than measured is
weighed in the choice itself (`doubt` in step_costs.py): trying it costs nothing but the difference.

For the same reason a rest begins with a trial: were plain steps too fast in the table, it would show at once, and not
when the draft has missed so much that going back no longer pays.

Of ragged steps alone: a GPU's captured ones are timed within a per cent at start, and what the draft must read behind
a trial took up to half a second there, in the one run with trials (docs/adaptive.md).
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from paceline.engine.goodput import Choice, DraftingRow
from paceline.engine.step_costs import SURE, PaddedCosts, RaggedCosts, StepCosts

SHARE = 0.005  # of the time that trials may take
_MOST_SPARE = 1.0  # seconds saved up for one


class PlainTrials:
    def __init__(self) -> None:
        self._left = 0  # steps of the trial under way
        self._settling = 0  # steps behind a trial in which drafts have its tokens to read
        self._spare = 0.0  # seconds
        self._has_gone_first = False

    @property
    def owes_reading(self) -> bool:
        """What drafts lag by is this trial's doing: no reason to give them up."""
        return self._left > 0 or self._settling > 0

    def wants(self, rows: Seq[DraftingRow], drafted: Choice, nobody: Choice, costs: StepCosts) -> bool:
        """Should this step, for which `drafted` is the best, be a plain one?"""
        if self._left:
            self._left -= 1
            self._settling = 2
            return True
        self._settling, self._has_gone_first = max(0, self._settling - 1), False
        if isinstance(costs, PaddedCosts):
            return False
        doubt = costs.doubt(len(rows), 0)
        if nobody.rate * (1.0 + doubt) <= drafted.rate:
            return False
        lost = SURE * nobody.seconds * max(0.0, drafted.rate / nobody.rate - 1.0) + _reading(len(rows), costs)
        if lost > self._spare:
            return False
        self._spare -= lost
        self._left = SURE - 1
        return True

    def goes_first(self, num_rows: int, costs: StepCosts) -> bool:
        """Nobody should draft from now on: is that to be tried before it becomes a rest? A rest is not easily ended,
        since what the draft has missed must be read."""
        if not self._left:
            if isinstance(costs, PaddedCosts) or self._has_gone_first or not costs.doubt(num_rows, 0):
                return False
            self._left, self._has_gone_first = SURE, True
            self._spare -= _reading(num_rows, costs)
        self._left -= 1
        self._settling = 2
        return True

    def end_step(self, seconds: float) -> None:
        """Others have drafted for so long."""
        self._spare = min(self._spare + SHARE * seconds, _MOST_SPARE)

    def stop(self) -> None:
        """Nobody drafts any more: plain steps are timed anyway."""
        self._left, self._settling, self._has_gone_first = 0, 0, False


def _reading(num_rows: int, costs: RaggedCosts) -> float:
    """Seconds in which the draft reads what a trial has committed."""
    return costs.draft(num_rows * (2 + SURE)) - costs.draft(2 * num_rows)
