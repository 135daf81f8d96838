"""The attention plan: a ForwardBatch's rows, cut and grouped so that each group is one gather and one SDPA.

Contract
- Made once a forward and shared by all layers; pure index arithmetic.
- No row ever reads another row's blocks or the null block, not even under a mask: a table is padded with the row's
  own last block. So what one row stores, NaN included, cannot reach its neighbours.

How: rows are cut into pieces of at most MAX_QUERIES queries (a long prefill chunk becomes several, each reading only
the positions up to its own last query). Short pieces of similar length form a group. A group is kept so small that
the gathered keys and values stay in the CPU's cache between the gather and the product; one row in consecutive
blocks is not gathered at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from paceline.layers.attention import AttentionPlan, Group
from paceline.models.architecture import Architecture
from paceline.runner.forward_batch import ForwardBatch

MAX_QUERIES = 128  # of one piece
SHORT = 16  # queries up to which pieces share a group
GROUP_BYTES = 4 << 20  # gathered keys and values of one group


@dataclass(frozen=True, slots=True)
class Piece:
    """Queries first..first+num_queries of the batch, all of one row, that see `kv_len` positions."""

    row: int
    first: int
    num_queries: int
    kv_len: int


def cut(batch: ForwardBatch) -> list[Piece]:
    """Every row's queries in pieces of at most MAX_QUERIES."""
    pieces, first = [], 0
    for row, (num_queries, kv_len) in enumerate(zip(batch.query_lens, batch.kv_lens, strict=True)):
        for start in range(0, num_queries, MAX_QUERIES):
            length = min(MAX_QUERIES, num_queries - start)
            pieces.append(Piece(row, first + start, length, kv_len - num_queries + start + length))
        first += num_queries
    return pieces


def grouped(pieces: list[Piece], block_size: int, bytes_per_position: int) -> list[list[Piece]]:
    """Neighbours in (queries, keys) together, as long as neither padding nor the gathered bytes grow too far."""
    groups: list[list[Piece]] = []
    for piece in sorted(pieces, key=lambda piece: (piece.num_queries > SHORT, piece.kv_len)):
        if groups and _fits(groups[-1], piece, bytes_per_position, block_size):
            groups[-1].append(piece)
        else:
            groups.append([piece])
    return groups


def _fits(group: list[Piece], piece: Piece, bytes_per_position: int, block_size: int) -> bool:
    if piece.num_queries > SHORT or group[0].num_queries > SHORT:
        return False
    if piece.kv_len > 2 * group[0].kv_len + 4 * block_size:
        return False
    return (len(group) + 1) * piece.kv_len * bytes_per_position <= GROUP_BYTES


def plan_attention(
    batch: ForwardBatch, architecture: Architecture, dtype: torch.dtype, block_size: int
) -> AttentionPlan:
    pieces = cut(batch)
    ordered = grouped(pieces, block_size, 2 * architecture.kv_size * dtype.itemsize)
    heads_per_kv = architecture.num_heads // architecture.num_kv_heads
    windows = set(architecture.sliding_windows)
    groups = [_group(members, batch, windows, heads_per_kv, dtype, block_size) for members in ordered]
    if len(groups) == 1 and groups[0].queries is None:
        return AttentionPlan(groups, None, heads_per_kv)
    return AttentionPlan(groups, _scatter(ordered, batch.token_ids), heads_per_kv)


def _scatter(ordered: list[list[Piece]], token_ids: Tensor) -> Tensor:
    """Where each token's output lies when the groups' padded outputs are laid end to end."""
    places = [0] * token_ids.shape[0]
    offset = 0
    for members in ordered:
        padded = max(piece.num_queries for piece in members)
        for piece in members:
            places[piece.first : piece.first + piece.num_queries] = range(offset, offset + piece.num_queries)
            offset += padded
    return torch.tensor(places, device=token_ids.device)


def _group(
    members: list[Piece],
    batch: ForwardBatch,
    windows: set[int | None],
    heads_per_kv: int,
    dtype: torch.dtype,
    block_size: int,
) -> Group:
    num_queries = max(piece.num_queries for piece in members)
    indices = _query_indices(members, num_queries)
    device = batch.token_ids.device
    in_order = indices == list(range(batch.token_ids.shape[0]))
    queries = torch.tensor(indices, device=device)
    first_block, blocks = _blocks(members, batch.block_tables, block_size)
    longest = max(piece.kv_len for piece in members)
    kv_len = longest if len(members) == 1 else -(-longest // block_size) * block_size
    positions = batch.positions.index_select(0, queries).view(len(members), 1, 1, num_queries, 1)
    exact = num_queries == 1 and all(piece.kv_len == kv_len for piece in members)
    masks = {
        window: None
        if exact and (window is None or window >= kv_len)
        else _mask(positions, kv_len, window, heads_per_kv, dtype)
        for window in windows
    }
    return Group(len(members), num_queries, kv_len, None if in_order else queries, blocks, first_block, masks)


def _query_indices(members: list[Piece], num_queries: int) -> list[int]:
    """Token indices of each piece, the last one repeated up to `num_queries`."""
    return [piece.first + min(i, piece.num_queries - 1) for piece in members for i in range(num_queries)]


def _blocks(members: list[Piece], block_tables: Tensor, block_size: int) -> tuple[int, Tensor | None]:
    """(first block, None) for one row in consecutive blocks, else (0, [n * blocks]) padded with own blocks."""
    counts = [-(-piece.kv_len // block_size) for piece in members]
    if len(members) == 1 and block_tables.device.type == "cpu":
        table = block_tables[members[0].row, : counts[0]].tolist()
        if all(after == before + 1 for before, after in pairwise(table)):
            return table[0], None
    rows = torch.tensor([piece.row for piece in members], device=block_tables.device)
    last = torch.tensor(counts, device=block_tables.device).unsqueeze(1) - 1
    columns = torch.arange(max(counts), device=block_tables.device).unsqueeze(0).minimum(last)
    return 0, block_tables[rows.unsqueeze(1), columns].flatten()


def _mask(positions: Tensor, kv_len: int, window: int | None, heads_per_kv: int, dtype: torch.dtype) -> Tensor:
    """0 where a query at `positions` [n, 1, 1, q, 1] sees a key, -inf elsewhere: [n, 1, G·q, kv_len]."""
    keys = torch.arange(kv_len, device=positions.device)
    hidden = keys > positions
    if window is not None:
        hidden |= keys <= positions - window
    mask = torch.zeros(hidden.shape, dtype=dtype, device=positions.device).masked_fill_(hidden, float("-inf"))
    return mask.expand(-1, -1, heads_per_kv, -1, -1).flatten(2, 3)
