"""RequestSpread: how much requests of one batch differ in how often their drafts are taken.

Of each request: drafts won over drafts tried. With few drafts that is mostly luck, and to let the luckiest half of a
batch draft would be to believe in luck. So first it is asked by how much requests differ beyond what luck explains (the
method of moments for a random effect: DerSimonian and Laird 1986), and each one's rate is drawn to the mean by its
share of luck (the empirical Bayes estimate). Where luck explains all, they are alike, and what is known of all traffic
says more.

A request's drafts are taken to be equally likely at every place, if those before them were kept. Over all traffic later
places look surer than early ones, but mostly since the requests that draft badly never get there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median_low

from paceline.engine.acceptance_estimates import HIGHEST

_MEMORY = 0.97  # of a request, a pass
_LEAST = 0.01  # variance of one try: drafts that are always taken say little of the next one
_ENOUGH = 8.0  # tries of most requests, after which it is known whether they differ
_ANEW = 1.0  # tries that what is thought of all requests weighs once traffic has turned; 6 hid who is good for long


@dataclass(slots=True)
class _Record:
    won: float = 0.0
    tries: float = 0.0
    seen: float = 0.0  # of the tries, those that were made, and not taken for granted

    @property
    def rate(self) -> float:
        return self.won / self.tries


class RequestSpread:
    def __init__(self) -> None:
        self._records: dict[int, _Record] = {}
        self._are_alike = False  # when last known: newcomers are no reason to ask again

    def record(self, seq_id: int, num_tried: int, num_accepted: int) -> None:
        """One pass. num_tried: drafts up to the first that was lost, itself included."""
        record = self._records.setdefault(seq_id, _Record())
        record.won = record.won * _MEMORY + num_accepted
        record.tries = record.tries * _MEMORY + num_tried
        record.seen = record.seen * _MEMORY + num_tried

    def knows_enough(self, seq_ids: Iterable[int]) -> bool:
        """To tell whether these differ; or requests did not when last they were known."""
        seen = (record.seen if (record := self._records.get(i)) else 0.0 for i in seq_ids)
        return self._are_alike or median_low(seen) >= _ENOUGH

    def rates(self, seq_ids: Iterable[int]) -> list[float]:
        """P(a draft is kept | those before it are) of each; []: they are alike, as far as is known."""
        found = [self._records.get(i) for i in seq_ids]
        known = [record for record in found if record]
        tries = sum(record.tries for record in known)
        if len(known) < 2:
            return []
        pooled = sum(record.won for record in known) / tries
        luck = max(_LEAST, pooled * (1.0 - pooled))  # of one try
        spread = sum(r.tries * (r.rate - pooled) ** 2 - luck for r in known) / tries
        if sum(record.seen for record in known) >= _ENOUGH * len(found):
            self._are_alike = spread <= 0.0
        if spread <= 0.0:
            return []
        weights = [1.0 / (spread + luck / record.tries) for record in known]
        mean = sum(weight * record.rate for weight, record in zip(weights, known, strict=True)) / sum(weights)
        return [min(HIGHEST, mean + spread / (spread + luck / r.tries) * (r.rate - mean)) if r else mean for r in found]

    def start_anew(self, rate: float) -> None:
        """All traffic has turned: every request is taken to be at `rate`, until it shows otherwise."""
        self._are_alike = False
        for record in self._records.values():
            record.won, record.tries, record.seen = rate * _ANEW, _ANEW, 0.0

    def forget_all(self) -> None:
        """A batch rests: what was known of its requests is no longer asked for."""
        self._records.clear()

    def forget(self, seq_id: int) -> None:
        self._records.pop(seq_id, None)
