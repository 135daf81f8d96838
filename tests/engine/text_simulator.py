"""Requests whose own text may draft for them, on the simulated machine of speculation_simulator.py.

A text is followed by the length of its match alone: while looked-up tokens are right the match grows by one each; at
the first that is wrong there is none, until a short one is found again. How often a looked-up token is right at which
length, and how soon a match is found, is the request's law; what the engine believes of it is NgramEstimates'.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from engine.speculation_simulator import Machine, SimulatedRequest

from paceline.engine.controller import SpeculationController
from paceline.engine.goodput import DraftingRow
from paceline.engine.ngram_estimates import NgramEstimates
from paceline.engine.step_costs import RaggedCosts, active_rows, padding
from paceline.engine.tally import Outcome
from paceline.prompt_lookup import Match

FIRST_MATCH = 2  # tokens

RightAt = Callable[[int], float]  # length of the match -> P(the token looked up is the next one)


@dataclass
class TextRequest(SimulatedRequest):
    """found: P(a step without a match is followed by one). `law` is the draft model's."""

    right_at: RightAt = lambda length: 0.0
    found: float = 0.0
    length: int = 0  # of the match before the next step; 0: none

    def looked_up(self, most: int) -> Match | None:
        return Match(self.length, [1] * most) if self.length and most else None

    def committed(self, count: int, rng: random.Random) -> list[int]:
        """So many tokens, whoever drafted: 1 where the text would have said so, 0 elsewhere. Moves the match on."""
        tokens = []
        for _ in range(count):
            right = self.length > 0 and rng.random() < self.right_at(self.length)
            tokens.append(int(right))
            self._move_on(right, rng)
        return tokens

    def by_text(self, most: int, rng: random.Random) -> list[int]:
        """What a step commits whose drafts are the text's: as many as are right, and one more."""
        tokens: list[int] = []
        while len(tokens) < most and rng.random() < self.right_at(self.length):
            tokens.append(1)
            self._move_on(True, rng)
        last = len(tokens) == most and rng.random() < self.right_at(self.length)
        self._move_on(last, rng)
        return [*tokens, int(last)]

    def _move_on(self, right: bool, rng: random.Random) -> None:
        if right:
            self.length += 1
        else:
            self.length = FIRST_MATCH if rng.random() < self.found else 0

    def expected_by_text(self, most: int) -> float:
        tokens, survived = 1.0, 1.0
        for place in range(most):
            survived *= self.right_at(self.length + place)
            tokens += survived
        return tokens


def run_with_texts(
    machine: Machine,
    controller: SpeculationController | None,
    requests: list[TextRequest],
    steps: int,
    *,
    proposer: str = "auto",
    most: int = 5,
) -> Machine:
    """`controller` None: nobody drafts. `machine` is a CPU's."""
    estimates = NgramEstimates()
    for _ in range(steps):
        matches = {r.seq_id: r.looked_up(most if proposer != "draft" else 0) for r in requests}
        counts, by_text = [0] * len(requests), [False] * len(requests)
        if controller is not None:
            controller.decide(
                [_row(r, matches[r.seq_id], estimates, 0 if proposer == "ngram" else most) for r in requests]
            )
            controller.start_step()
            counts = [controller.drafts(r.seq_id) for r in requests]
            by_text = [controller.drafts_by_text(r.seq_id) for r in requests]
        drafting, other = _seconds(machine, requests, counts, by_text)
        lagging = any(
            r.lag > 1 and count and not text for r, count, text in zip(requests, counts, by_text, strict=True)
        )
        outcomes = []
        for request, count, text in zip(requests, counts, by_text, strict=True):
            outcome, tokens = _commit(machine, request, count, text)
            outcomes.append(outcome)
            if (match := matches[request.seq_id]) is not None and controller is not None:
                estimates.record(request.seq_id, match, tokens)
                if outcome.num_made:
                    expected = controller.estimates.survival(request.seq_id)[0]
                    estimates.record_draft(match, expected, outcome.num_accepted > 0)
        if controller is not None:
            controller.end_step(outcomes, drafting, other, is_typical=not lagging)
    return machine


def _row(request: TextRequest, match: Match | None, estimates: NgramEstimates, most: int) -> DraftingRow:
    lag = request.lag if request.lag > 1 else 0
    if match is None:
        return DraftingRow(request.seq_id, most, 0, lag)
    text, gain = estimates.survival(request.seq_id, match), estimates.draft_gain(match)
    return DraftingRow(request.seq_id, most, 0, lag, text=text, gain=gain)


def _seconds(
    machine: Machine, requests: list[TextRequest], counts: list[int], by_text: list[bool]
) -> tuple[float, float]:
    costs = machine.costs
    assert isinstance(costs, RaggedCosts)
    made = [0 if text else count for count, text in zip(counts, by_text, strict=True)]
    lag = sum(request.lag for request, count in zip(requests, made, strict=True) if count)
    drafting = costs.drafting(active_rows(made), lag)
    other = costs.verifying(len(counts), sum(counts), 0.0, padding(len(counts), active_rows(counts)))
    machine.seconds += drafting + other
    machine.history.append(counts)
    told = max(0.5, 1.0 + machine.rng.gauss(0.0, machine.jitter)) if machine.jitter else 1.0
    return told * drafting, told * other


def _commit(machine: Machine, request: TextRequest, count: int, by_text: bool) -> tuple[Outcome, list[int]]:
    rng = machine.rng
    if by_text and count:
        machine.tokens += request.expected_by_text(count)
        tokens = request.by_text(count, rng)
        accepted = len(tokens) - 1
    else:
        machine.tokens += request.expected(count)
        rate, accepted = request.law(request.done), 0
        while accepted < count and rng.random() < rate:
            accepted += 1
        tokens = request.committed(accepted + 1, rng)
    request.done += len(tokens)
    request.lag = 0 if count and not by_text else request.lag + len(tokens)
    return Outcome(request.seq_id, count, count, accepted, 0, by_text=by_text and count > 0), tokens
