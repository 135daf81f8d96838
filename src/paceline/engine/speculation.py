"""How many tokens may be drafted for a sequence in this step.

`wanted_drafts` is the one place where K is chosen; the scheduler then lowers it where the step's token
budget or the free blocks are short. Pure Python, deterministic in its inputs.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.sequence import Sequence


@dataclass(frozen=True, slots=True)
class SpeculationPolicy:
    """A fixed K, clamped to what a sequence can still use.

    draft_max_len: positions that the draft model has (None: the proposer has no model).
    """

    num_speculative_tokens: int
    draft_max_len: int | None = None

    @property
    def has_draft_model(self) -> bool:
        return self.draft_max_len is not None

    def wanted_drafts(self, sequence: Sequence, most_under_way: int = 0) -> int:
        """K for this sequence: at most what it may still emit less the token that comes for free.

        `most_under_way`: tokens that a step under way may commit before; at least one of them it will.
        """
        k = min(self.num_speculative_tokens, sequence.num_remaining_tokens - min(most_under_way, 1) - 1)
        if self.draft_max_len is not None:
            if sequence.draft_failed:
                return 0
            # The last draft is never fed to the draft itself: n + k - 1 positions are read.
            k = min(k, self.draft_max_len - sequence.num_tokens - most_under_way + 1)
        return max(k, 0)
