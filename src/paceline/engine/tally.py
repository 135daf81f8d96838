"""Tally: what a controller's steps brought, for the metrics; and the one warning of a draft that is of no use."""

from __future__ import annotations

import logging
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Literal

from paceline.engine.goodput import Choice
from paceline.engine.statistics import SpeculationChoices

logger = logging.getLogger(__name__)

Reason = Literal["load", "acceptance"]

USELESS = 0.05  # first drafts taken: fewer say that the draft does not fit the model


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a row of a committed step did."""

    seq_id: int
    planned: int
    num_drafted: int
    num_accepted: int
    positions: int
    by_text: bool = False  # its drafts were looked up
    draws: bool = False  # see DraftingRow

    @property
    def num_made(self) -> int:
        """Drafts of the draft model."""
        return 0 if self.by_text else self.num_drafted


class Tally:
    def __init__(self, most: int) -> None:
        """`most`: the K of the configuration."""
        self.choices = SpeculationChoices(steps_by_k=[0] * (most + 1))
        self._most = most
        self._wins = self._passes = 0  # of the draft model
        self._has_warned = False

    def add(self, outcomes: Seq[Outcome], expected: Choice | None, seconds: float, reason: Reason | None) -> None:
        """A committed step. `expected`: what was chosen for it; `reason`: why it rests, None: it does not."""
        made = [outcome for outcome in outcomes if outcome.num_made]
        self._passes += len(made)
        self._wins += sum(outcome.num_accepted > 0 for outcome in made)
        if expected is None or not outcomes:
            return
        choices = self.choices
        choices.steps_by_k[min(max(outcome.planned for outcome in outcomes), self._most)] += 1
        choices.expected_tokens += expected.tokens
        choices.expected_seconds += expected.seconds
        choices.achieved_tokens += sum(1 + outcome.num_accepted for outcome in outcomes)
        choices.achieved_seconds += seconds
        if reason is not None:
            choices.rest_steps[reason] += 1
            choices.rest_seconds[reason] += seconds

    def warn_of_useless_drafts(self) -> None:
        """Once, if hardly any were taken. Called where a rest for acceptance has lasted."""
        if self._has_warned or self._wins >= USELESS * self._passes:
            return
        self._has_warned = True
        logger.warning(
            "Speculation rests: of %d drafts the model took %d. The text is not affected, but such a draft only costs "
            "time. Check that the draft belongs to this model (same family, same chat template, sound weights). It is "
            "tried again now and then.",
            self._passes,
            self._wins,
        )
