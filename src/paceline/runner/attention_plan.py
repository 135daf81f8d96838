"""The attention plan: a ForwardBatch's rows, cut and grouped so that each group is one gather and one SDPA.

Contract
- Made once a forward and shared by all layers; pure index arithmetic.
- No row ever reads another row's blocks or the null block, not even under a mask: a table is padded with the row's
  own last block. So what one row stores, NaN included, cannot reach its neighbours.
- A query's result has the same bits whatever is computed beside it: see `padded_keys`, and `padded_rows` in
  query_order.py.

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
from paceline.runner.query_order import query_order

MAX_QUERIES = 128  # of one piece
SHORT = 16  # queries up to which pieces share a group
GROUP_BYTES = 2 << 20  # gathered keys and values of one group


@dataclass(frozen=True, slots=True)
class Piece:
    """Queries first..first+num_queries of the batch, all of one row, that see `kv_len` positions."""

    row: int
    first: int
    num_queries: int
    kv_len: int


def plan_attention(batch: ForwardBatch, arch: Architecture, dtype: torch.dtype, block_size: int) -> AttentionPlan:
    grouped = group_pieces(cut(batch), 2 * arch.kv_size * dtype.itemsize)
    if arch.num_kv_heads == 1:  # an SDPA of one task would run its products on several threads, with other rounding
        grouped = [members * 2 if len(members) == 1 else members for members in grouped]
    spans = tuple(tuple((piece.first, piece.num_queries) for piece in members) for members in grouped)
    order = query_order(spans, arch.num_heads, arch.num_kv_heads, batch.positions.device)
    windows = set(arch.sliding_windows)
    groups = [
        _group(members, batch, batch.positions[tokens], windows, dtype, block_size)
        for members, tokens in zip(grouped, order.tokens, strict=True)
    ]
    return AttentionPlan(groups, order.gather, order.scatter)


def padded_keys(kv_len: int, block_size: int) -> int:
    """Keys to read, so that the sum over them is cut at the same places for every length.

    The CPU's SDPA takes keys 512 at a time; the product inside (MKL) takes these 192 at a time, but halves what is
    left if that is between 192 and 384. Masked keys add exactly 0, so a length that is never in between, and whole
    vectors of 16, give a row the same bits whether its group is padded further or not.
    """
    unit = max(block_size, 16)
    length = -(-kv_len // unit) * unit
    rest = length % 512
    return length + 384 - rest if 192 < rest < 384 else length


def cut(batch: ForwardBatch) -> list[Piece]:
    """Every row's queries in pieces of at most MAX_QUERIES."""
    pieces, first = [], 0
    for row, (num_queries, kv_len) in enumerate(zip(batch.query_lens, batch.kv_lens, strict=True)):
        for start in range(0, num_queries, MAX_QUERIES):
            length = min(MAX_QUERIES, num_queries - start)
            pieces.append(Piece(row, first + start, length, kv_len - num_queries + start + length))
        first += num_queries
    return pieces


def group_pieces(pieces: list[Piece], bytes_per_position: int) -> list[list[Piece]]:
    """Short pieces of similar length together, as long as neither padding nor gathered bytes grow too far."""
    groups: list[list[Piece]] = []
    for piece in sorted(pieces, key=lambda piece: (piece.num_queries > SHORT, piece.kv_len)):
        if groups and _fits(groups[-1], piece, bytes_per_position):
            groups[-1].append(piece)
        else:
            groups.append([piece])
    return groups


def _fits(group: list[Piece], piece: Piece, bytes_per_position: int) -> bool:
    if piece.num_queries > SHORT or piece.kv_len > 2 * group[0].kv_len + 64:
        return False
    return (len(group) + 1) * piece.kv_len * bytes_per_position <= GROUP_BYTES


def _group(
    members: list[Piece],
    batch: ForwardBatch,
    positions: Tensor,
    windows: set[int | None],
    dtype: torch.dtype,
    block_size: int,
) -> Group:
    kv_len = padded_keys(max(piece.kv_len for piece in members), block_size)
    first_block, blocks = _blocks(members, batch.block_tables, kv_len // block_size, block_size)
    masks = {window: _mask(positions, kv_len, window, dtype) for window in windows}
    return Group(len(members), positions.shape[1], kv_len, blocks, first_block, masks)


def _blocks(members: list[Piece], block_tables: Tensor, width: int, block_size: int) -> tuple[int, Tensor | None]:
    """(first block, None) for one row in consecutive blocks, else (0, [n * width]) padded with own blocks."""
    counts = [-(-piece.kv_len // block_size) for piece in members]
    device = block_tables.device
    if counts == [width] and device.type == "cpu":
        table = block_tables[members[0].row, :width].tolist()
        if all(after == before + 1 for before, after in pairwise(table)):
            return table[0], None
    rows = torch.tensor([[piece.row] for piece in members], device=device)
    last = torch.tensor(counts, device=device).unsqueeze(1) - 1
    columns = torch.arange(width, device=device).minimum(last)
    return 0, block_tables[rows, columns].flatten()


def _mask(positions: Tensor, kv_len: int, window: int | None, dtype: torch.dtype) -> Tensor:
    """0 where a query row at `positions` [n, rows] sees a key, -inf elsewhere: [n, 1, rows, kv_len]."""
    keys, last = torch.arange(kv_len, device=positions.device), positions[:, None, :, None]
    hidden = keys > last
    if window is not None:
        hidden |= keys <= last - window
    return torch.zeros(hidden.shape, dtype=dtype, device=positions.device).masked_fill_(hidden, float("-inf"))
