"""How many tokens may be drafted for a sequence in this step.

`wanted_drafts` is the one place where K is chosen; the scheduler then lowers it where the step's token
budget or the free blocks are short. Pure Python, deterministic in its inputs.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.config import Proposer
from paceline.sequence import Sequence


@dataclass(frozen=True, slots=True)
class SpeculationPolicy:
    """A fixed K, clamped to what a sequence can still use.

    draft_max_len: positions that the draft model has (None: the proposer has no model).
    looks_up: drafts may come from a request's own text instead of the draft model.
    proposer: of requests that name none.
    """

    num_speculative_tokens: int
    draft_max_len: int | None = None
    looks_up: bool = False
    proposer: Proposer = "auto"

    @property
    def has_draft_model(self) -> bool:
        return self.draft_max_len is not None

    def proposer_of(self, sequence: Sequence) -> Proposer:
        """What may draft for it. A text that its user wants again depends on what drafts, so that must not wander."""
        if not self.looks_up:
            return "draft" if self.has_draft_model else "ngram"
        asked = sequence.params.speculation
        proposer = (asked.proposer if asked else None) or self.proposer
        return "draft" if proposer == "auto" and sequence.has_own_seed else proposer

    def wanted_drafts(self, sequence: Sequence) -> int:
        """K for this sequence: at most what it may still emit less the token that comes for free. Of the draft model,
        where there is one."""
        if self.has_draft_model and (sequence.draft_failed or self.proposer_of(sequence) == "ngram"):
            return 0
        return max(0, min(self.most_drafts(sequence), self.draft_limit(sequence) - sequence.num_tokens))

    def wanted_lookups(self, sequence: Sequence) -> int:
        """The same from its own text, which knows no longest position and does not fail; 0: it wants none."""
        if not self.looks_up or self.proposer_of(sequence) == "draft":
            return 0
        return max(0, min(self.most_drafts(sequence), sequence.num_remaining_tokens - 1))

    def most_drafts(self, sequence: Sequence) -> int:
        """K, or less where the request asks for less."""
        asked = sequence.params.speculation
        own = asked.num_speculative_tokens if asked else None
        return self.num_speculative_tokens if own is None else min(own, self.num_speculative_tokens)

    def draft_limit(self, sequence: Sequence) -> int:
        """What its committed tokens and drafts together may come to, however far it has got."""
        limit = sequence.num_tokens + sequence.num_remaining_tokens - 1
        # The last draft is never fed to the draft itself: n + k - 1 positions are read.
        return limit if self.draft_max_len is None else min(limit, self.draft_max_len + 1)
