"""TrafficWatch: notices that the drafts of many requests are no longer taken as often as was thought of them.

What is known of traffic is an average over some thousand tries, ten to thirty steps of a large batch, and what is known
of a request reaches back thirty passes. If all of it turns at once, that is too slow: so the drafts that were won
lately are held against those that were to be expected. Expected of the rows that drafted: which ones do may change.
"""

from __future__ import annotations

_TRIES = 200.0  # of first drafts that the shorter average remembers
_LEAST_TRIES = 50.0
_MANY = 8.0  # first drafts of a step that may stand for all traffic
_SURE = 4.0  # standard errors


class TrafficWatch:
    def __init__(self, most: int) -> None:
        """`most`: places, the largest K."""
        self._wins = 0.0  # of first drafts, lately
        self._tries = 0.0
        self._expected = 0.0  # wins of these
        self._seen = 0.0  # tries; the first of them were expected by a guess, and prove nothing
        self._step: tuple[list[float], list[float]] = ([0.0] * most, [0.0] * most)  # wins, tries by place
        self._step_expected = 0.0

    def record(self, tried: int, num_accepted: int, expected: float) -> None:
        """One pass that tried so many places; `expected`: the chance that its first draft was taken."""
        wins, tries = self._step
        for place in range(tried):
            tries[place] += 1.0
            wins[place] += place < num_accepted
        self._step_expected += expected

    def end_step(self) -> tuple[list[float], list[float]] | None:
        """If what was expected cannot be true any more: wins and tries, by place, of the step that is over, the only
        one to be trusted."""
        wins, tries = self._step
        if not tries[0]:
            return None
        expected, self._step_expected = self._step_expected, 0.0
        self._step = ([0.0] * len(wins), [0.0] * len(tries))
        self._seen += tries[0]
        if self._seen <= _TRIES:
            return None
        kept = min(1.0, _TRIES / (self._tries + tries[0]))
        self._wins, self._tries = kept * (self._wins + wins[0]), kept * (self._tries + tries[0])
        self._expected = kept * (self._expected + expected)
        if self._tries < _LEAST_TRIES or tries[0] < _MANY:
            return None
        believed = self._expected / self._tries
        error = (max(0.0, believed * (1.0 - believed)) + 0.01) ** 0.5 * self._tries**0.5
        if abs(self._wins - self._expected) <= _SURE * error:
            return None
        self._wins, self._tries, self._expected = wins[0], tries[0], wins[0]
        return wins, tries
