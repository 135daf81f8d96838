"""NgramEstimates: how likely tokens that were looked up in a request's own text are to be kept.

The longer the n-gram that had occurred before, the surer is what followed it; and once a token was kept, the next one
stands behind a match that is longer by one. So there is one table, P(kept | length of the match), from all traffic,
and place j of a match of length L reads it at L + j. A request departs from it by one factor, as in
acceptance_estimates.py.

A text that repeats itself is easier for the draft model as well. `draft_gain` says how much more often its first token
is taken behind a match than its average says; without that a text would be preferred to a draft that is surer.

Nothing has to be drafted to learn the first of these: whatever a step commits is held against what the lookup would
have said. A token that was drawn from the target's law equals the one looked up with the very probability with which
that is accepted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence as Seq

from paceline.engine.acceptance_estimates import HIGHEST, RequestFactor
from paceline.prompt_lookup import Match

# Shortest match of a class, and its first guess: 32 prompts of ten kinds, greedy, default pair (docs/adaptive.md).
_CLASSES = (1, 2, 3, 4, 5, 8, 16)
_GUESSES = (0.18, 0.50, 0.62, 0.74, 0.81, 0.89, 0.95)
_GAINS = (0.9, 1.0, 1.08, 1.16, 1.2, 1.27, 1.28)  # of the draft model, from the same prompts
_GUESS_STRENGTH = 30.0  # tries that a guess counts for
_MEMORY = 0.998  # of all traffic, a try


class NgramEstimates:
    def __init__(self) -> None:
        self._wins = [guess * _GUESS_STRENGTH for guess in _GUESSES]
        self._tries = [_GUESS_STRENGTH] * len(_CLASSES)
        self._made = [gain * _GUESS_STRENGTH for gain in _GAINS]  # first drafts of the draft model that were taken
        self._expected = [_GUESS_STRENGTH] * len(_CLASSES)
        self._requests: dict[int, RequestFactor] = {}

    def draft_gain(self, match: Match) -> float:
        """Factor of the chance that the draft model's first token is taken behind this match."""
        index = _class_of(match.length)
        return self._made[index] / self._expected[index]

    def record_draft(self, match: Match, expected: float, won: bool) -> None:
        """The draft model drafted behind a match; its first token was to be taken with the chance `expected`."""
        index = _class_of(match.length)
        self._made[index] = self._made[index] * _MEMORY + won
        self._expected[index] = self._expected[index] * _MEMORY + expected

    def survival(self, seq_id: int, match: Match) -> tuple[float, ...]:
        """P(the first j tokens of the match are all kept), j = 1 .. their number."""
        request = self._requests.get(seq_id)
        factor = request.factor if request else 1.0
        survived, found = 1.0, []
        for place in range(len(match.token_ids)):
            survived *= min(self._rate(match.length + place) * factor, HIGHEST)
            found.append(survived)
        return tuple(found)

    def record(self, seq_id: int, match: Match, committed: Seq[int]) -> None:
        """A step committed these tokens where the match would have stood, whoever drafted."""
        request = self._requests.setdefault(seq_id, RequestFactor())
        request.fade()
        for place, (guessed, token) in enumerate(zip(match.token_ids, committed, strict=False)):
            won = guessed == token
            length = match.length + place
            request.add(self._rate(length), won)
            self._learn(_class_of(length), won)
            if not won:
                return

    def _learn(self, index: int, won: bool) -> None:
        self._wins[index] = self._wins[index] * _MEMORY + won
        self._tries[index] = self._tries[index] * _MEMORY + 1.0

    def _rate(self, length: int) -> float:
        index = _class_of(length)
        return self._wins[index] / self._tries[index]

    def forget(self, seq_id: int) -> None:
        self._requests.pop(seq_id, None)


def _class_of(length: int) -> int:
    return bisect_right(_CLASSES, length) - 1
