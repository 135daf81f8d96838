"""What a draft has missed, read before a captured step.

A captured step's draft lags by one token at most. Rows whose draft has rested, or has never read their prompt, lag by
more: one eager pass of the draft over what they lack, and the step itself can run captured. Without it the whole step,
the target's pass over every row included, would be an eager one.
"""

from __future__ import annotations

import msgspec

from paceline.plan import RowPlan, StepPlan
from paceline.runner import batch_inputs
from paceline.runner.model_runner import ModelRunner


def lags(row: RowPlan) -> bool:
    """Must the draft read tokens of this row that no captured step reads?"""
    return bool(row.draft_chunk) and row.draft_start < _read_by_step(row)


def catch_up(draft: ModelRunner, plan: StepPlan, block_size: int) -> StepPlan:
    """Read what is missing; returns the plan with what is left to do, whose rows a captured step can take.

    A row whose draft went bad is found out by the step: its laws are not finite.
    """
    late = [row for row in plan.rows if lags(row)]
    missed = [msgspec.structs.replace(row, draft_chunk=_missed(row), num_draft_tokens=0) for row in late]
    batch = batch_inputs.build(batch_inputs.draft_chunk_spans(missed), block_size)
    draft.forward(batch.to(draft.device))
    return StepPlan(step_id=plan.step_id, rows=[_left(row) if lags(row) else row for row in plan.rows])


def _read_by_step(row: RowPlan) -> int:
    """Position of the first of its draft chunk's tokens that the captured step reads itself."""
    return row.num_committed_tokens - 2 if row.num_draft_tokens else row.draft_start + len(row.draft_chunk)


def _missed(row: RowPlan) -> list[int]:
    return row.draft_chunk[: _read_by_step(row) - row.draft_start]


def _left(row: RowPlan) -> RowPlan:
    start = _read_by_step(row)
    return msgspec.structs.replace(
        row,
        draft_start=start,
        draft_chunk=row.draft_chunk[start - row.draft_start :],
        num_draft_computed_tokens=max(row.num_draft_computed_tokens, start),
    )
