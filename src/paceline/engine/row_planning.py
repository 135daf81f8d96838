"""RowPlanner: what a step computes of one sequence, as a row of its plan.

Which sequences a step takes, and the blocks for them, are the scheduler's (scheduler.py); here is what each row reads,
drafts and carries. Nothing of it changes a sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.engine.draft_choice import DraftChoice
from paceline.plan import MAX_SCORED_TOKENS, RowPlan
from paceline.sequence import Sequence


@dataclass(slots=True)
class Budget:
    """Tokens left in this step for each model, and prompt tokens that may still be scored."""

    target: int
    draft: int
    scored: int = MAX_SCORED_TOKENS


class RowPlanner:
    def __init__(self, drafts: DraftChoice, *, keep_history: bool) -> None:
        """`keep_history`: rows carry all committed tokens, for proposers that read text."""
        self._choice = drafts
        self._keep_history = keep_history

    def drafts_behind(self, sequence: Sequence, end: int, budget: Budget) -> int:
        """Drafts wanted behind `end`: none while prefilling, or while the draft cannot catch up in one step.

        The first token of an answer is never drafted, even where the prefix cache holds the prompt: a step without
        drafts uses other random numbers, and a seed must give one text whether its prompt is cached or not.
        """
        if sequence.num_output_tokens == 0:
            return 0
        if end < sequence.num_tokens or sequence.num_computed_tokens < sequence.num_tokens - 1:
            return 0
        behind = end - sequence.num_draft_computed_tokens
        if self._choice.policy.has_draft_model and behind > budget.draft and not self._choice.text(sequence):
            return 0
        return self._choice.wanted(sequence)

    def row(self, sequence: Sequence, end: int, drafts: int, budget: Budget) -> RowPlan:
        """Its tokens up to `end` and so many drafts behind them; what it takes is taken off the budget."""
        start = sequence.num_computed_tokens
        scored = sequence.prompt_token_ids[start + 1 : end + 1] if sequence.wants_prompt_logprobs else []
        budget.scored -= len(scored)
        text = self._choice.text(sequence)[:drafts]
        draft_start, draft_end = (0, 0) if text else self._draft_span(sequence, end, drafts, budget)
        budget.target -= end - start + drafts
        budget.draft -= draft_end - draft_start
        return RowPlan(
            seq_id=sequence.seq_id,
            block_table=list(sequence.block_table),
            start=start,
            token_ids=sequence.token_ids[start:end],
            draft_start=draft_start,
            draft_chunk=sequence.token_ids[draft_start:draft_end],
            num_draft_computed_tokens=sequence.num_draft_computed_tokens,
            num_draft_tokens=drafts,
            text_drafts=text,
            emits=end == sequence.num_tokens,
            num_output_tokens=sequence.num_output_tokens,
            scored_token_ids=scored,
            history=sequence.token_ids if self._wants_history(sequence, end == sequence.num_tokens, drafts) else None,
            sampling=sequence.sampling,
        )

    def _wants_history(self, sequence: Sequence, emits: bool, drafts: int) -> bool:
        return (emits and sequence.sampling.needs_history) or (self._keep_history and drafts > 0)

    def _draft_span(self, sequence: Sequence, end: int, drafts: int, budget: Budget) -> tuple[int, int]:
        """Positions that the draft reads before it proposes.

        With drafts: from its watermark to the end, and always the last two, so that no branch is needed
        after a step in which everything was accepted. Without: along with a prefill chunk, as far as its
        budget goes, if this sequence is going to draft at all; else nothing.
        """
        mark = sequence.num_draft_computed_tokens
        if not self._choice.policy.has_draft_model:
            return 0, 0
        if drafts:
            return max(0, min(mark, end - 2)), end
        catching_up = sequence.num_computed_tokens < sequence.num_tokens - 1 or end - mark > budget.draft
        if not catching_up or not self._choice.reads_along(sequence):
            return 0, 0
        return mark, max(mark, min(end, mark + budget.draft))


def ahead(sequence: Sequence, row: RowPlan, place: int, *, drafts: int, limit: int) -> RowPlan:
    """The row that follows `row`, which stands at `place` in a step whose result is not known yet. `limit`: what
    its committed tokens and drafts together may come to."""
    return RowPlan(
        seq_id=sequence.seq_id,
        block_table=list(sequence.block_table),
        start=row.num_committed_tokens,
        token_ids=[],
        num_draft_tokens=drafts,
        num_output_tokens=sequence.num_output_tokens + 1,
        source=place,
        draft_limit=limit,
        sampling=sequence.sampling,
    )


def known(sequence: Sequence, row: RowPlan) -> RowPlan:
    """`row`, which followed a step that is committed now, as it was in truth."""
    n = sequence.num_tokens
    drafts = max(0, min(row.num_draft_tokens, row.draft_limit - n))
    return RowPlan(
        seq_id=row.seq_id,
        block_table=row.block_table,
        start=n - 1,
        token_ids=sequence.token_ids[-1:],
        draft_start=max(0, n - 2) if drafts else 0,
        draft_chunk=sequence.token_ids[-2:] if drafts else [],
        num_draft_computed_tokens=sequence.num_draft_computed_tokens,
        num_draft_tokens=drafts,
        num_output_tokens=sequence.num_output_tokens,
        sampling=row.sampling,
    )
