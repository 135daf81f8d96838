"""Proposer: the first of the four verbs. Given a plan, suggest tokens behind each emitting row."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Protocol

import torch

from paceline.layers.sampling import SamplingBatch
from paceline.plan import RowPlan, StepPlan
from paceline.speculative.rejection import Proposal


class Proposer(Protocol):
    def propose(self, plan: StepPlan, sampling: SamplingBatch) -> Proposal:
        """Suggest up to num_draft_tokens tokens for every emitting row of the plan, in the plan's order.

        A proposer with a model also reads the plan's draft chunks, of every row, emitting or not.
        """
        ...


class NoProposer:
    """Speculation off: K = 0."""

    def propose(self, plan: StepPlan, sampling: SamplingBatch) -> Proposal:
        return nothing(emitting_rows(plan), sampling.device)


def emitting_rows(plan: StepPlan) -> list[RowPlan]:
    return [row for row in plan.rows if row.emits]


def nothing(rows: Seq[RowPlan], device: torch.device) -> Proposal:
    ids = torch.full((len(rows), 0), -1, dtype=torch.int64, device=device)
    return Proposal(ids, [0] * len(rows), on_host=[[] for _ in rows])
