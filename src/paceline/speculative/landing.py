"""How the result of a captured step comes to the host: one tensor, in the order of the step's places."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from paceline.plan import RowPlan, RowResult, StepPlan
from paceline.speculative.decoder import NOT_FINITE
from paceline.step_forms import Form

NUM_STAMPS = 4  # start, drafted, verified, accepted
WIDTH = 4  # of a row's result without its K drafts: num_drafted, num_accepted, valid, the token that follows


class Landing:
    """Where a step's result lands, and the event that says it has."""

    def __init__(self, num_rows: int, k: int, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._host = torch.zeros(num_rows * (k + WIDTH) + NUM_STAMPS, dtype=torch.int64, pin_memory=self._on_gpu)
        self._event: Any = torch.cuda.Event() if self._on_gpu else None  # type: ignore[no-untyped-call]

    def take(self, packed: Tensor) -> None:
        self._host[: packed.numel()].copy_(packed, non_blocking=True)
        if self._event is not None:
            self._event.record()

    def is_done(self) -> bool:
        return self._event is None or bool(self._event.query())

    def read(self, num_rows: int, width: int) -> tuple[list[list[int]], list[int]]:
        if self._event is not None:
            self._event.synchronize()
        size = num_rows * width
        stamps: list[int] = self._host[size : size + NUM_STAMPS].tolist()
        table: list[list[int]] = self._host[:size].view(num_rows, width).tolist()
        return table, stamps


def places_in(form: Form, rows: Seq[RowPlan]) -> list[int]:
    """Where each row of a plan stands in the step: rows with drafts first, if not all may have some."""
    if form.drafting >= len(rows):
        return list(range(len(rows)))
    order = sorted(range(len(rows)), key=lambda index: rows[index].num_draft_tokens == 0)
    places = [0] * len(rows)
    for place, index in enumerate(order):
        places[index] = place
    return places


@dataclass(frozen=True, slots=True)
class Submitted:
    """A step under way. places[i]: where its plan's row i stands in the step."""

    plan: StepPlan
    form: Form
    places: Seq[int]
    landing: Landing
    void: set[int] = field(default_factory=set)  # sequences that failed in the step before

    def read(self) -> tuple[list[RowResult], list[int]]:
        """Results in the order of the plan, and the stamps; waits for them."""
        table, stamps = self.landing.read(self.form.size, self.form.k + WIDTH)
        rows = self.plan.rows
        return [_result(row, table[place]) for row, place in zip(rows, self.places, strict=True)], stamps


def _result(row: RowPlan, packed: list[int]) -> RowResult:
    num_drafted, num_accepted, valid, *tokens = packed
    return RowResult(
        seq_id=row.seq_id,
        output_token_ids=tokens[: num_accepted + 1],
        num_accepted=num_accepted,
        num_drafted=max(0, num_drafted),
        error=None if valid else NOT_FINITE,
        draft_failed=row.num_draft_tokens > 0 and num_drafted < 0,
    )
