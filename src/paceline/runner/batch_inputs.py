"""From a plan to flat host arrays: positions, slots, tables, logits indices. Pure; no model, no device.

Example, block_size 4. A row with block_table [7, 3], start 5, token_ids [t5] and two drafts:

    positions      5    6    7          token t5 and the drafts d1, d2
    slot_mapping   3*4+1  3*4+2  3*4+3
    query_len 3, kv_len 8
    logits_indices of the row's K+1 = 3 places: 0, 1, 2

Rows with fewer drafts than the step's K repeat their last index, so that logits are [B, K+1, V].
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.plan import RowPlan, StepPlan
from paceline.runner.forward_batch import ForwardBatch

Array = NDArray[np.int64]

_FEW_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive positions of one row in one forward pass.

    tokens: ids known on the host; `num_device_tokens` more follow whose ids are on the device (drafts).
    write_from: positions below this are read from the pool, their slot is the null block's.
    num_logits: logits of the last so many tokens are wanted; padded by repeating up to the batch's width.
    num_scored: logits of the first so many tokens are wanted as well; they come behind all others.
    """

    block_table: list[int]
    start: int
    tokens: Seq[int]
    num_device_tokens: int = 0
    write_from: int = 0
    num_logits: int = 0
    num_scored: int = 0

    @property
    def length(self) -> int:
        return len(self.tokens) + self.num_device_tokens


@dataclass(frozen=True, slots=True)
class HostBatch:
    """ForwardBatch on the host, and where the device's tokens go."""

    token_ids: Array  # [T]; 0 where the device fills in
    positions: Array  # [T]
    slot_mapping: Array  # [T]
    block_tables: Array  # [R, max_blocks]
    query_lens: list[int]
    kv_lens: list[int]
    logits_indices: Array  # [L]
    device_places: Array  # flat indices of the tokens to fill in, row by row

    def to(self, device: torch.device, device_tokens: Tensor | None = None) -> ForwardBatch:
        """Move to the device; `device_tokens` is flat, in the order of `device_places`."""
        token_ids = torch.from_numpy(self.token_ids).to(device)
        if device_tokens is not None and len(self.device_places):
            token_ids[torch.from_numpy(self.device_places).to(device)] = device_tokens
        return ForwardBatch(
            token_ids=token_ids,
            positions=torch.from_numpy(self.positions).to(device),
            slot_mapping=torch.from_numpy(self.slot_mapping).to(device),
            block_tables=torch.from_numpy(self.block_tables).to(device),
            query_lens=self.query_lens,
            kv_lens=self.kv_lens,
            logits_indices=torch.from_numpy(self.logits_indices).to(device),
        )


def build(spans: Seq[Span], block_size: int, logits_width: int = 1) -> HostBatch:
    """Lay spans end to end. Spans with num_logits > 0 take `logits_width` logits rows each, in order; those with
    num_scored > 0 take num_scored more each, behind all of these."""
    query_lens = [span.length for span in spans]
    starts = [0, *accumulate(query_lens)]
    tables = _padded([span.block_table for span in spans])
    place = _places_one_by_one if starts[-1] <= _FEW_TOKENS else _places
    positions, slots = place(spans, tables, query_lens, block_size)
    token_ids = np.zeros(len(positions), dtype=np.int64)
    for span, first in zip(spans, starts, strict=False):
        token_ids[first : first + len(span.tokens)] = span.tokens
    return HostBatch(
        token_ids=token_ids,
        positions=positions,
        slot_mapping=slots,
        block_tables=tables,
        query_lens=query_lens,
        kv_lens=[s.start + s.length for s in spans],
        logits_indices=_logits_indices(spans, starts, logits_width),
        device_places=_device_places(spans, starts),
    )


def _places(spans: Seq[Span], tables: Array, query_lens: list[int], block_size: int) -> tuple[Array, Array]:
    """Position and slot of every token."""
    positions = np.concatenate([np.arange(s.start, s.start + s.length, dtype=np.int64) for s in spans])
    rows = np.repeat(np.arange(len(spans)), query_lens)
    slots = tables[rows, positions // block_size] * block_size + positions % block_size
    slots[positions < np.repeat([s.write_from for s in spans], query_lens)] = 0
    return positions, slots


def _places_one_by_one(spans: Seq[Span], _: Array, query_lens: list[int], block_size: int) -> tuple[Array, Array]:
    """The same, sooner for a handful: a dozen calls of numpy take longer, the more so behind a forward that has emptied
    the caches."""
    positions: list[int] = []
    slots: list[int] = []
    for span, length in zip(spans, query_lens, strict=True):
        table = span.block_table
        for position in range(span.start, span.start + length):
            block, offset = divmod(position, block_size)
            positions.append(position)
            slots.append(table[block] * block_size + offset if position >= span.write_from else 0)
    return np.array(positions, dtype=np.int64), np.array(slots, dtype=np.int64)


def target_spans(plan: StepPlan, num_drafted: Seq[int], drafts: Seq[Seq[int]] | None = None) -> list[Span]:
    """What the target reads: each row's chunk and, behind it, the `num_drafted` tokens proposed for it; `drafts`: those
    tokens, where the host knows them."""
    return [
        Span(
            block_table=row.block_table,
            start=row.start,
            tokens=row.token_ids if drafts is None else [*row.token_ids, *drafts[index]],
            num_device_tokens=num_drafted[index] if drafts is None else 0,
            num_logits=num_drafted[index] + 1 if row.emits else 0,
            num_scored=len(row.scored_token_ids),
        )
        for index, row in enumerate(plan.rows)
    ]


def draft_chunk_spans(rows: Seq[RowPlan]) -> list[Span]:
    """What the draft reads before it proposes: committed tokens, those it already has into the null block."""
    return [
        Span(
            block_table=row.block_table,
            start=row.draft_start,
            tokens=row.draft_chunk,
            write_from=row.num_draft_computed_tokens,
            num_logits=1 if row.num_model_drafts else 0,
        )
        for row in rows
    ]


def draft_step_spans(rows: Seq[RowPlan], step: int) -> list[Span]:
    """The draft reads its own token number `step` (from 0) of each row, to propose the next one."""
    return [
        Span(
            block_table=row.block_table,
            start=row.num_committed_tokens + step,
            tokens=(),
            num_device_tokens=1,
            num_logits=1,
        )
        for row in rows
    ]


def _padded(tables: list[list[int]]) -> Array:
    padded = np.zeros((len(tables), max(map(len, tables))), dtype=np.int64)
    for row, table in zip(padded, tables, strict=True):
        row[: len(table)] = table
    return padded


def _logits_indices(spans: Seq[Span], starts: Seq[int], width: int) -> Array:
    wanted = [(first, span) for span, first in zip(spans, starts, strict=False) if span.num_logits]
    indices = [
        first + span.length - span.num_logits + min(place, span.num_logits - 1)
        for first, span in wanted
        for place in range(width)
    ]
    for span, first in zip(spans, starts, strict=False):
        indices.extend(range(first, first + span.num_scored))
    return np.array(indices, dtype=np.int64)


def _device_places(spans: Seq[Span], starts: Seq[int]) -> Array:
    places = [
        np.arange(first + len(span.tokens), first + span.length)
        for span, first in zip(spans, starts, strict=False)
        if span.num_device_tokens
    ]
    return np.concatenate(places).astype(np.int64) if places else np.zeros(0, dtype=np.int64)
