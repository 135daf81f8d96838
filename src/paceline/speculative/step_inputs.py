"""StepInputs: what a captured step reads, in one buffer that one copy fills; and Carry, what it leaves for the next.

Layout, for R rows and tables of W blocks: seeds int64 [R] | fields int32 [F, R] | block tables int32 [R, W]. The
device's views lie at fixed addresses. Two pinned twins on the host take turns, because a step is filled in while the
copy of the one before it may still wait for its turn on the device.

A row that is padding has n = 0: it stores into the null block, attends to nothing, and its output is dropped.

A row that follows a step whose result the host does not know yet has `source` >= 0, its place in that step: what n
and the last tokens are then comes from the carry, on the device.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.layers.random import as_int64
from paceline.plan import RowPlan

_FIELDS = (
    "num_tokens",  # n: committed tokens; 0: padding
    "draft_from",  # positions below this have the draft's KV already
    "previous_token",  # at position n-2; 0 if there is none
    "last_token",  # at position n-1
    "source",  # place in the step before whose carry replaces the four fields above; -1: none
    "num_draft_tokens",
    "draft_limit",  # n and the drafts together: the device lowers num_draft_tokens to it
    "top_k",
    "temperature",
    "top_p",
    "min_p",
)
_NUM_INTEGERS = 8
_FLOATS = _FIELDS[_NUM_INTEGERS:]
CARRIED = _FIELDS[:4]


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a step as the device sees them: int32 and float32 [R]; block tables int32 [R, W]; seeds int64 [R]."""

    num_tokens: Tensor
    draft_from: Tensor
    previous_token: Tensor
    last_token: Tensor
    num_draft_tokens: Tensor
    top_k: Tensor
    temperature: Tensor
    top_p: Tensor
    min_p: Tensor
    seeds: Tensor
    block_tables: Tensor

    def first(self, count: int) -> Rows:
        return self if count == len(self.num_tokens) else self._part(slice(count))

    def behind(self, count: int) -> Rows:
        return self._part(slice(count, None))

    def _part(self, which: slice) -> Rows:
        return Rows(**{each.name: getattr(self, each.name)[which] for each in fields(self)})

    def ends_at(self, place: int) -> Tensor:
        """Positions that a row's token at n-1+place sees; 0: padding."""
        return torch.where(self.num_tokens > 0, self.num_tokens + place, 0)


class _Twin:
    """One of the host's copies, and which table each of its rows holds."""

    def __init__(self, num_bytes: int, num_rows: int, table_width: int, *, pinned: bool) -> None:
        self.raw = torch.zeros(num_bytes, dtype=torch.uint8, pin_memory=pinned)
        seeds, fields, tables = _views(self.raw, num_rows, table_width)
        self.seeds: NDArray[Any] = seeds.numpy()
        self.fields: NDArray[Any] = fields.numpy()
        self.tables: NDArray[Any] = tables.numpy()
        self.written: list[list[int]] = [[] for _ in range(num_rows)]

    def write_table(self, place: int, table: list[int]) -> None:
        """Blocks behind the row's own stay 0, the null block: positions nobody reserved are written there."""
        written = self.written[place]
        if written == table:
            return
        row = self.tables[place]
        row[: len(table)] = table
        row[len(table) : len(written)] = 0
        self.written[place] = table


class StepInputs:
    def __init__(self, num_rows: int, table_width: int, device: torch.device) -> None:
        self.num_rows = num_rows
        size = 8 * num_rows + 4 * num_rows * (len(_FIELDS) + table_width)
        self._raw = torch.zeros(size, dtype=torch.uint8, device=device)
        self._seeds, fields, self._tables = _views(self._raw, num_rows, table_width)
        self._fields = dict(zip(_FIELDS, fields, strict=True))
        self._twins = [_Twin(size, num_rows, table_width, pinned=device.type == "cuda") for _ in range(2)]

    def fill(self, rows: Seq[RowPlan], places: Seq[int], places_before: Seq[int]) -> None:
        """Write the rows of a step, the rest as padding, and start the copy to the device.

        places[i]: where row i stands, 0 .. len(rows) - 1 in any order. places_before: the same of the step before,
        to whose rows `RowPlan.source` points.
        """
        self._twins.reverse()
        twin, count = self._twins[0], len(rows)
        placed = sorted(zip(places, rows, strict=True), key=lambda entry: entry[0])
        rows = [row for _, row in placed]
        samplings = [row.sampling for row in rows]
        twin.seeds[:count] = [as_int64(s.seed) for s in samplings]
        twin.fields[:, count:] = 0
        twin.fields[4, count:] = -1
        twin.fields[:_NUM_INTEGERS, :count] = np.array([_integers(row, places_before) for row in rows], np.int32).T
        floats = np.array([(s.temperature, s.top_p, s.min_p) for s in samplings], dtype=np.float32)
        twin.fields[_NUM_INTEGERS:, :count] = floats.view(np.int32).T
        for place, row in enumerate(rows):
            twin.write_table(place, row.block_table)
        self._raw.copy_(twin.raw, non_blocking=True)

    def rows(self, carry: Tensor) -> Rows:
        """The step's rows, with `carry` [most rows, 4] int32 in place of what the host did not know."""
        fields = self._fields
        source = fields["source"].to(torch.int64)
        carried = carry.index_select(0, source.clamp(min=0)).unbind(1)
        known = {
            name: torch.where(source >= 0, value, fields[name]) for name, value in zip(CARRIED, carried, strict=True)
        }
        floats = {name: fields[name].view(torch.float32) for name in _FLOATS}
        drafts = torch.minimum(fields["num_draft_tokens"], fields["draft_limit"] - known["num_tokens"]).clamp(min=0)
        return Rows(
            **known, **floats, num_draft_tokens=drafts, top_k=fields["top_k"], seeds=self._seeds,
            block_tables=self._tables,
        )  # fmt: skip


def _views(raw: Tensor, num_rows: int, table_width: int) -> tuple[Tensor, Tensor, Tensor]:
    words = raw[8 * num_rows :].view(torch.int32)
    num_fields = len(_FIELDS) * num_rows
    fields = words[:num_fields].view(len(_FIELDS), num_rows)
    return raw[: 8 * num_rows].view(torch.int64), fields, words[num_fields:].view(num_rows, table_width)


def _integers(row: RowPlan, places_before: Seq[int]) -> tuple[int, ...]:
    if row.source is not None:
        return 1, 0, 0, 0, places_before[row.source], row.num_draft_tokens, row.draft_limit, row.sampling.top_k
    previous = row.draft_chunk[-2] if len(row.draft_chunk) > 1 else 0
    return (
        row.num_committed_tokens,
        row.num_draft_computed_tokens,
        previous,
        row.token_ids[-1],
        -1,
        row.num_draft_tokens,
        row.num_committed_tokens + row.num_draft_tokens,
        row.sampling.top_k,
    )
