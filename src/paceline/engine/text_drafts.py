"""TextDrafts: what the texts of the running requests suggest for the next step, and what came of it.

One searchable text a sequence, kept as long as the sequence asks for lookups; a step's matches, until its result is in.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.engine.ngram_estimates import NgramEstimates
from paceline.plan import RowResult
from paceline.prompt_lookup import Match, SearchableText
from paceline.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Found:
    """chances: that the first j tokens are all kept; empty: there is no match. draft_gain: see NgramEstimates."""

    chances: tuple[float, ...] = ()
    draft_gain: float = 1.0


NOTHING = Found()


class TextDrafts:
    def __init__(self, least: int, most: int) -> None:
        """`least`, `most`: lengths of n-grams."""
        self.estimates = NgramEstimates()
        self._least, self._most = least, most
        self._texts: dict[int, SearchableText] = {}
        self._matches: dict[int, Match] = {}

    def start_step(self) -> None:
        """The matches of the step before are used up."""
        self._matches.clear()

    def look_up(self, sequence: Sequence, count: int) -> Found:
        """Up to `count` tokens behind the committed ones."""
        match = self._find(sequence, count)
        if match is None:
            return NOTHING
        self._matches[sequence.seq_id] = match
        return Found(self.estimates.survival(sequence.seq_id, match), self.estimates.draft_gain(match))

    def _find(self, sequence: Sequence, count: int) -> Match | None:
        if count < 1:
            return None
        text = self._texts.setdefault(sequence.seq_id, SearchableText())
        text.extend(sequence.token_ids[len(text) :])
        return text.match(count, self._least, self._most)

    def tokens(self, seq_id: int) -> list[int]:
        """What was found before this step."""
        match = self._matches.get(seq_id)
        return match.token_ids if match else []

    def learn(self, result: RowResult, expected: float | None) -> None:
        """Before the result is committed: a step's matches are those of `look_up`. `expected`: the chance that the
        draft model's first token had on average; None: it did not draft for this row."""
        match = self._matches.get(result.seq_id)
        if match is None or not result.output_token_ids:
            return
        self.estimates.record(result.seq_id, match, result.output_token_ids)
        if expected is not None and result.num_drafted:
            self.estimates.record_draft(match, expected, result.num_accepted > 0)

    def forget(self, seq_id: int) -> None:
        """The sequence has ended."""
        self._texts.pop(seq_id, None)
        self._matches.pop(seq_id, None)
        self.estimates.forget(seq_id)
