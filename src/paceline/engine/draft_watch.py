"""DraftWatch: notices a proposer whose drafts are not taken (p32), and lets it rest.

A draft of the wrong weights, of another template or with a broken quantisation costs its passes and gives
nothing. The text is right all the same, so nobody would notice but by the clock.

The rule. A pass is one row's drafts in one step; it is lost if the first draft is rejected. Speculation is
degenerate when the evidence against "at least 1 pass in 20 is won" is overwhelming: Chernoff's bound
P(at most a of n won) <= exp(-n * KL(a/n || 1/20)) below one in a million. Without any win that takes 270 passes.
A proposer that wins less than 1 in 20 cannot pay for itself; one that wins more is left alone: how much it
should draft is not asked here.

Resting, it is asked again every REST_STEPS steps for PROBE_PASSES passes, and goes on if those win often
enough. Which steps draft depends on outcomes that are committed already, so laws stay exact.
"""

from __future__ import annotations

import logging
import math

logger = logging.getLogger(__name__)

LEAST_WINS = 0.05  # of passes
MEMORY = 2000  # passes after which older ones count half
REST_STEPS = 1000
PROBE_PASSES = 24
PROBE_WINS = 3
_EVIDENCE = math.log(1e6)


class DraftWatch:
    """One for an engine. `allows_drafts` changes between steps only, when `start_step` is called."""

    def __init__(self) -> None:
        self.num_switch_offs = 0
        self.is_off = False
        self.allows_drafts = True
        self._passes = 0
        self._wins = 0
        self._rested = 0

    def start_step(self) -> None:
        """A step is about to be planned."""
        if not self.is_off or self.allows_drafts:
            return
        self._rested += 1
        if self._rested >= REST_STEPS:
            self._forget()
            self.allows_drafts = True  # a probe

    def record(self, num_drafted: int, num_accepted: int) -> None:
        """The outcome of one pass; rows without drafts are none."""
        if num_drafted == 0:
            return
        self._passes += 1
        self._wins += num_accepted > 0
        if self.is_off:
            self._judge_probe()
        else:
            self._judge()

    def _judge(self) -> None:
        if self._wins < LEAST_WINS * self._passes and _evidence(self._wins, self._passes) > _EVIDENCE:
            logger.warning(
                "Speculation is switched off: of the last %d drafts the model took %d. The text is not affected, but "
                "such a draft only costs time. Check that the draft belongs to this model (same family, same chat "
                "template, sound weights). It is tried again now and then.",
                self._passes,
                self._wins,
            )
            self.num_switch_offs += 1
            self._rest()
        elif self._passes >= MEMORY:
            self._passes, self._wins = self._passes // 2, self._wins // 2

    def _judge_probe(self) -> None:
        if self._passes < PROBE_PASSES or not self.allows_drafts:
            return
        if self._wins >= PROBE_WINS:
            logger.info("Speculation is switched on again: %d of %d drafts were taken.", self._wins, self._passes)
            self.is_off = False
            self._forget()
        else:
            self._rest()

    def _rest(self) -> None:
        self.is_off, self.allows_drafts, self._rested = True, False, 0
        self._forget()

    def _forget(self) -> None:
        self._passes = self._wins = 0


def _evidence(wins: int, passes: int) -> float:
    """n * KL(wins/n || LEAST_WINS), in nats."""
    rate = wins / passes
    divergence = (1.0 - rate) * math.log((1.0 - rate) / (1.0 - LEAST_WINS))
    if rate > 0.0:
        divergence += rate * math.log(rate / LEAST_WINS)
    return passes * divergence
