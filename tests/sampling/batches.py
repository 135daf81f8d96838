"""Sampling batches from plans, for tests that have no engine."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch

from paceline.layers.restrictions import MaskProvider
from paceline.layers.sampling import SamplingBatch
from paceline.plan import RowPlan, SamplingPlan


def row_of(seq_id: int, plan: SamplingPlan, history: Seq[int] = (1,), num_output_tokens: int = 0) -> RowPlan:
    """A row whose last committed token is computed in this step."""
    return RowPlan(
        seq_id=seq_id,
        block_table=[],
        start=len(history) - 1,
        token_ids=[history[-1]],
        num_output_tokens=num_output_tokens,
        history=list(history),
        sampling=plan,
    )


def batch_of(plans: Seq[SamplingPlan], num_output_tokens: int = 0) -> SamplingBatch:
    rows = [row_of(seq_id, plan, num_output_tokens=num_output_tokens) for seq_id, plan in enumerate(plans)]
    return SamplingBatch(rows, torch.device("cpu"))


def batch_of_rows(rows: Seq[RowPlan], masks: MaskProvider | None = None) -> SamplingBatch:
    return SamplingBatch(rows, torch.device("cpu"), masks=masks)
