"""TrafficWatch: notices that the drafts of many requests are no longer taken as often as they were.

What is known of all traffic is an average over some thousand tries, ten to thirty steps of a large batch. If all of it
turns at once, that is too slow: so a shorter average is held against it.
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
        self._step: tuple[list[float], list[float]] = ([0.0] * most, [0.0] * most)  # wins, tries by place

    def record(self, tried: int, num_accepted: int) -> None:
        """One pass that tried so many places."""
        wins, tries = self._step
        for place in range(tried):
            tries[place] += 1.0
            wins[place] += place < num_accepted

    def end_step(self, believed: float) -> tuple[list[float], list[float]] | None:
        """`believed`: how often first drafts are taken. If that cannot be true any more: wins and tries, by place, of
        the step that is over, the only one to be trusted."""
        wins, tries = self._step
        if not tries[0]:
            return None
        self._step = ([0.0] * len(wins), [0.0] * len(tries))
        kept = min(1.0, _TRIES / (self._tries + tries[0]))
        self._wins, self._tries = kept * (self._wins + wins[0]), kept * (self._tries + tries[0])
        error = ((believed * (1.0 - believed) + 0.01) / self._tries) ** 0.5
        if self._tries < _LEAST_TRIES or tries[0] < _MANY or abs(self._wins / self._tries - believed) <= _SURE * error:
            return None
        self._wins, self._tries = wins[0], tries[0]
        return wins, tries
