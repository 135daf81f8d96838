"""AcceptanceEstimates: how likely the next drafts of each request are to be taken.

All traffic gives, for each place j, P(draft j is kept | those before it are): an exponential moving average over
steps. A place that is hardly tried leans on the place before it.

A request departs from that by one factor, won / expected, over its own last passes; it starts at 1 and is held there
by imagined wins, so that a request is average until it shows otherwise. What it shows place by place corrects the
rest. A slow average alone would miss a collapse (a text that turns to a language the draft does not know), and a fast
one would mistake bad luck for it; so a request is watched by two CUSUM tests (Page 1954), "its drafts are taken half
as often as I think" and "they are lost half as often", and when one is sure, what was known before is forgotten.
Where all rows draft alike the traffic of a large batch is watched as well (traffic_watch.py): it may turn as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from paceline.engine.traffic_watch import TrafficWatch

FIRST_GUESS = 0.75  # before any draft has been judged: one that is never tried would never be known
_PRIOR_MEMORY = (
    0.995  # of all traffic, a step. At one row this is all that a newcomer is judged by: 0.985 was one request
)
_GUESS_RATE = 0.05  # at which what was guessed gives way to what is seen
_GUESS_STRENGTH = 4.0  # tries that the first guess weighs against the first place's own
_PRIOR_STRENGTH = 24.0  # tries that the place before weighs against a place's own
_MEMORY = 0.96  # of a request, a pass
_HELD_BY = 10.0  # imagined wins that hold its factor at 1; with 20 half a batch that drafts well is found too late
_HELD_AFTER_CHANGE = 0.5  # ... once it has shown that it is not average, or no longer what it was
_PLACE_STRENGTH = 24.0  # tries that hold its place's rate at factor * prior
_ALARM = 6.0  # log-likelihood ratio at which a change is believed: about 1 in 400 by chance
_MOST_TRIES = 1000.0  # of all traffic, at a place: with many rows a step is news enough
_OLD_TRIES = 12.0  # ... that count once nobody drafts any more: a probe must be heard
_HOPE = 1.5  # standard errors
_WARINESS = 0.5
HIGHEST = 0.985  # nothing is certain
_SUREST = 0.8  # that a test for a change thinks it was: two lost drafts in a row are none


@dataclass(slots=True)
class _Change:
    """One CUSUM test: evidence since it was last 0, and what was won and expected since then."""

    evidence: float = 0.0
    won: float = 0.0
    expected: float = 0.0

    def add(self, log_ratio: float, won: bool, prior: float) -> bool:
        """Is it sure now?"""
        self.evidence += log_ratio
        if self.evidence <= 0.0:
            self.evidence = self.won = self.expected = 0.0
            return False
        self.won += won
        self.expected += prior
        return self.evidence > _ALARM


@dataclass(slots=True)
class RequestFactor:
    """How much more, or less, often a request's drafts are taken than those of all traffic."""

    won: float = 0.0
    expected: float = 0.0
    held_by: float = _HELD_BY
    worse: _Change = field(default_factory=_Change)
    better: _Change = field(default_factory=_Change)

    @property
    def factor(self) -> float:
        return (self.won + self.held_by) / (self.expected + self.held_by)

    def fade(self) -> None:
        """Before a pass."""
        self.won *= _MEMORY
        self.expected *= _MEMORY

    def add(self, prior: float, won: bool) -> bool:
        """A draft that is taken with probability `prior` was won or lost. True: it is no longer what it was."""
        self.won += won
        self.expected += prior
        rate = min(max(prior * self.factor, 0.02), _SUREST)
        if won:
            worse, better = math.log(0.5), math.log((1.0 + rate) / (2.0 * rate))
        else:
            worse, better = math.log((2.0 - rate) / (2.0 - 2.0 * rate)), math.log(0.5)
        for change, log_ratio in ((self.worse, worse), (self.better, better)):
            if change.add(log_ratio, won, prior):
                self.won, self.expected, self.held_by = change.won, change.expected, _HELD_AFTER_CHANGE
                self.worse, self.better = _Change(), _Change()
                return True
        return False


@dataclass(slots=True)
class _Request:
    own: RequestFactor = field(default_factory=RequestFactor)
    wins: list[float] = field(default_factory=list)  # by place
    tries: list[float] = field(default_factory=list)

    def fade(self, places: int) -> None:
        """Before a pass that tries so many places."""
        self.own.fade()
        self.wins = [wins * _MEMORY for wins in self.wins]
        self.tries = [tries * _MEMORY for tries in self.tries]
        missing = places - len(self.tries)
        self.wins += [0.0] * missing
        self.tries += [0.0] * missing

    def add(self, place: int, prior: float, won: bool) -> None:
        self.wins[place] += won
        self.tries[place] += 1.0
        if self.own.add(prior, won):
            self.wins, self.tries = [0.0] * len(self.wins), [0.0] * len(self.tries)


class AcceptanceEstimates:
    def __init__(self, most: int, first_guess: float = FIRST_GUESS, *, turns_together: bool = False) -> None:
        """`most`: places, the largest K. `turns_together`: all rows draft or none, so that a change of the average is
        one of the traffic, and not of who drafts."""
        self._most = most
        self._first_guess = first_guess
        self._wins = [0.0] * most
        self._tries = [0.0] * most
        self._requests: dict[int, _Request] = {}
        self._rates = [first_guess] * most
        self._has_news = False
        self._watch = TrafficWatch(most) if turns_together else None

    def record(self, seq_id: int | None, num_drafted: int, num_accepted: int, expected: float | None = None) -> None:
        """The outcome of one pass; a row without drafts is none. `seq_id` None: for all traffic alone. `expected`: what
        the chance of its first draft was thought to be; None: that of all traffic."""
        if num_drafted == 0:
            return
        self._has_news = True
        tried = min(num_drafted, num_accepted + 1, self._most)
        for place in range(tried):
            self._tries[place] += 1.0
            self._wins[place] += place < num_accepted
        if seq_id is not None:
            self._record_request(seq_id, tried, num_accepted)
        if self._watch is not None:
            self._watch.record(tried, num_accepted, self._rates[0] if expected is None else expected)

    def _record_request(self, seq_id: int, tried: int, num_accepted: int) -> None:
        request = self._requests.setdefault(seq_id, _Request())
        request.fade(tried)
        for place in range(tried):
            request.add(place, self._rates[place], place < num_accepted)

    def end_step(self) -> bool:
        """After all rows of a step are recorded: older steps count less, and the rates of all traffic are new. True:
        it has turned, and nothing that was known of it or of a request holds."""
        if not self._has_news:
            return False
        self._has_news = False
        has_turned = self._watch is not None and self._has_turned(self._watch)
        self._learn()
        return has_turned

    def _has_turned(self, watch: TrafficWatch) -> bool:
        if (step := watch.end_step()) is None:
            return False
        self._wins, self._tries = step
        self._first_guess = (self._wins[0] + 1.0) / (self._tries[0] + 2.0)
        self._requests.clear()
        return True

    def _learn(self) -> None:
        before, strength = self._first_guess, _GUESS_STRENGTH
        if self._tries[0]:
            before += _GUESS_RATE * (self._wins[0] / self._tries[0] - before)
            self._first_guess = before
        for place in range(self._most):
            wins, tries = self._wins[place], self._tries[place]
            before = (wins + strength * before) / (tries + strength)
            self._rates[place], strength = before, _PRIOR_STRENGTH
            kept = min(_PRIOR_MEMORY, _MOST_TRIES / tries) if tries else 0.0
            self._wins[place], self._tries[place] = wins * kept, tries * kept

    def grow_old(self) -> None:
        """Drafting stops: what is known keeps its mean and loses weight."""
        self._first_guess = self._rates[0]
        for place, tries in enumerate(self._tries):
            kept = min(1.0, _OLD_TRIES / tries) if tries else 0.0
            self._wins[place], self._tries[place] = self._wins[place] * kept, tries * kept

    def pool(self, seq_ids: Seq[int]) -> None:
        """These requests are all traffic from now on: the mean of their chances is its chance, and nothing is known of
        each any more."""
        survived = [sum(chances) for chances in zip(*map(self.survival, seq_ids), strict=True)]
        for place, (chance, before) in enumerate(zip(survived, [float(len(seq_ids)), *survived], strict=False)):
            self._rates[place] = chance / before
            self._wins[place] = self._rates[place] * self._tries[place]
        for seq_id in seq_ids:
            self.forget(seq_id)

    def forget(self, seq_id: int) -> None:
        self._requests.pop(seq_id, None)

    @property
    def doubt(self) -> float:
        """Standard error of the first place's rate."""
        rate, tries = self._rates[0], self._tries[0]
        return math.sqrt((rate * (1.0 - rate) + 0.01) / (tries + 1.0))

    def hopeful(self, survival: Seq[float]) -> list[float]:
        """`survival`, if the first place is as good as luck may hide."""
        return scaled(survival, (survival[0] + _HOPE * self.doubt) / survival[0], 1.0)

    def wary(self, survival: Seq[float]) -> list[float]:
        """`survival`, if the first place was lucky so far."""
        return scaled(survival, max(0.0, survival[0] - _WARINESS * self.doubt) / survival[0], 1.0)

    def survival(self, seq_id: int | None) -> list[float]:
        """P(the first j drafts are all kept), j = 1 .. most. None: of a request that is not known yet."""
        request = self._requests.get(seq_id) if seq_id is not None else None
        survived, result = 1.0, []
        if request is None:
            for rate in self._rates:
                survived *= min(rate, HIGHEST)
                result.append(survived)
            return result
        factor, known = request.own.factor, len(request.tries)
        for place, rate in enumerate(self._rates):
            own = min(rate * factor, HIGHEST)
            if place < known:
                own = (request.wins[place] + _PLACE_STRENGTH * own) / (request.tries[place] + _PLACE_STRENGTH)
            survived *= min(own, HIGHEST)
            result.append(survived)
        return result


def scaled(survival: Seq[float], factor: float, highest: float = HIGHEST) -> list[float]:
    """`survival`, if the first place is kept so many times as often."""
    better = min(highest, survival[0] * factor) / survival[0] if factor != 1.0 else 1.0
    return [value * better for value in survival]


def steady_survival(rate: float, most: int) -> list[float]:
    """P(the first j drafts are all kept), j = 1 .. most, where each is kept with `rate` if those before it are."""
    survived, result = 1.0, []
    for _ in range(most):
        survived *= rate
        result.append(survived)
    return result
