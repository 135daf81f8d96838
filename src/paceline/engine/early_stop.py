"""EarlyStop: where a row's drafting should end because the draft itself is unsure. For ragged (eager) steps.

The draft's confidence in a row's first j drafts is the product of the peaks of the laws it drew them from. The worker
ends a row before the first draft whose confidence falls below a floor (plan.RowPlan.least_confidence); a pass is spent
on that, a row of the target's pass is saved. The floor is where a draft stops being worth its row:

    P(the first j drafts are kept | confidence) >= rate * seconds      rate: tokens a second of the step as a whole
                                                                       seconds: of one more row of the target's pass

The probability is counted, by confidence, over all traffic. Where nothing is drafted any more nothing is counted, so
what was counted fades, back to the guess that confidence is honest, and drafts there are tried again.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from paceline.engine.step_costs import rising

BINS = 20
_GUESS_STRENGTH = 8.0  # tries that weigh for "confidence is honest"
_MEMORY = 0.99  # of a count, a step
_LEAST_FLOOR = 0.02  # below, the confidence is not worth its softmax


class EarlyStop:
    def __init__(self, most: int) -> None:
        """`most`: the largest K."""
        self._wins = [0.0] * BINS
        self._tries = [0.0] * BINS
        self._planned = [1.0] * most
        self._drafted = [1.0] * most

    def record(self, planned: int, num_accepted: int, num_drafted: int, confidences: Seq[float]) -> None:
        """One row's outcome. `confidences`: by place, of its drafts and of the one before which it ended, if it did."""
        if not planned or not confidences:
            return
        for place in range(planned):
            self._planned[place] += 1.0
            self._drafted[place] += place < num_drafted
        for place, confidence in enumerate(confidences[:num_drafted]):
            index = min(int(confidence * BINS), BINS - 1)
            self._tries[index] += 1.0
            self._wins[index] += place < num_accepted

    def end_step(self) -> None:
        for values in (self._wins, self._tries, self._planned, self._drafted):
            values[:] = [value * _MEMORY for value in values]

    def shares(self) -> list[float]:
        """By place: of rows that may draft so far, how many do."""
        return [
            (drafted + 1.0) / (planned + 1.0) for drafted, planned in zip(self._drafted, self._planned, strict=True)
        ]

    def survival(self) -> list[float]:
        """P(all drafts so far are kept) by bin of confidence, never falling."""
        guesses = [(index + 0.5) / BINS for index in range(BINS)]
        counted = zip(self._wins, self._tries, guesses, strict=True)
        return rising([(w + _GUESS_STRENGTH * guess) / (t + _GUESS_STRENGTH) for w, t, guess in counted])

    def floor(self, rate: float, seconds: float) -> float:
        """The least confidence of a draft that is worth `seconds` where tokens come at `rate` a second; 0: all are."""
        worth = rate * seconds
        below = sum(probability < worth for probability in self.survival())
        floor = min(below, BINS - 1) / BINS  # the surest drafts are always tried: the choice of K has weighed those
        return floor if floor >= _LEAST_FLOOR else 0.0
