"""The attention plan: a ForwardBatch's rows, cut and grouped so that each group is one gather and one SDPA.

Contract
- Made once a forward and shared by all layers; pure index arithmetic.
- No row ever reads another row's blocks or the null block, not even under a mask: a table is padded with the row's
  own last block. So what one row stores, NaN included, cannot reach its neighbours.
- A query's result has the same bits whatever is computed beside it (see `padded_keys` and `padded_queries`).

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


def plan_attention(batch: ForwardBatch, arch: Architecture, dtype: torch.dtype, block_size: int) -> AttentionPlan:
    heads_per_kv = arch.num_heads // arch.num_kv_heads
    grouped = group_pieces(cut(batch), 2 * arch.kv_size * dtype.itemsize)
    if arch.num_kv_heads == 1:  # an SDPA of one task would run its products on several threads, with other rounding
        grouped = [members * 2 if len(members) == 1 else members for members in grouped]
    widths = [padded_queries(max(piece.num_queries for piece in members), heads_per_kv) for members in grouped]
    tokens = [
        torch.tensor(_query_indices(members, width), device=batch.positions.device).view(len(members), 1, 1, width)
        for members, width in zip(grouped, widths, strict=True)
    ]
    windows = set(arch.sliding_windows)
    return AttentionPlan(
        groups=[
            _group(members, batch, positions, windows, heads_per_kv, dtype, block_size)
            for members, positions in zip(grouped, (batch.positions[index] for index in tokens), strict=True)
        ],
        gather=torch.cat([_gather(index, arch) for index in tokens]),
        scatter=_scatter(grouped, widths, batch.positions, arch),
        heads_per_kv=heads_per_kv,
    )


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


def padded_queries(num_queries: int, heads_per_kv: int) -> int:
    """Queries so that no block of 32 rows ends in fewer than 4: those take another product with other rounding."""
    while 0 < num_queries * heads_per_kv % 32 < 4:
        num_queries += 1
    return num_queries


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


def _query_indices(members: list[Piece], width: int) -> list[int]:
    """Token indices of each piece, the last one repeated up to `width`."""
    indices: list[int] = []
    for piece in members:
        end = piece.first + piece.num_queries
        indices += [*range(piece.first, end), *[end - 1] * (width - piece.num_queries)]
    return indices


def _gather(tokens: Tensor, arch: Architecture) -> Tensor:
    """tokens [n, 1, 1, q] -> vectors of the projection [T·(H + 2·KV), D] in the order n, KV, G, q."""
    heads = torch.arange(arch.num_heads, device=tokens.device).view(1, arch.num_kv_heads, -1, 1)
    return (tokens * (arch.num_heads + 2 * arch.num_kv_heads) + heads).flatten()


def _scatter(grouped: list[list[Piece]], widths: list[int], like: Tensor, arch: Architecture) -> Tensor:
    """[T·H]: where each token's heads lie when the groups' outputs [n, G, q, KV] are laid end to end."""
    first = [0] * like.shape[0]  # the place of a token's head 0
    step = [0] * like.shape[0]  # from one head of a key-value group to the next
    offset = 0
    for members, width in zip(grouped, widths, strict=True):
        for piece in members:
            end = piece.first + piece.num_queries
            first[piece.first : end] = range(offset, offset + piece.num_queries * arch.num_kv_heads, arch.num_kv_heads)
            step[piece.first : end] = [width * arch.num_kv_heads] * piece.num_queries
            offset += width * arch.num_heads
    places = torch.tensor([first, step], device=like.device).view(2, -1, 1, 1)
    kv_head = torch.arange(arch.num_kv_heads, device=like.device).view(1, -1, 1)
    in_group = torch.arange(arch.num_heads // arch.num_kv_heads, device=like.device).view(1, 1, -1)
    return (places[0] + kv_head + in_group * places[1]).flatten()


def _group(
    members: list[Piece],
    batch: ForwardBatch,
    positions: Tensor,
    windows: set[int | None],
    heads_per_kv: int,
    dtype: torch.dtype,
    block_size: int,
) -> Group:
    kv_len = padded_keys(max(piece.kv_len for piece in members), block_size)
    first_block, blocks = _blocks(members, batch.block_tables, kv_len // block_size, block_size)
    masks = {window: _mask(positions, kv_len, window, heads_per_kv, dtype) for window in windows}
    return Group(len(members), positions.shape[-1], kv_len, blocks, first_block, masks)


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


def _mask(positions: Tensor, kv_len: int, window: int | None, heads_per_kv: int, dtype: torch.dtype) -> Tensor:
    """0 where a query at `positions` [n, 1, 1, q] sees a key, -inf elsewhere: [n, 1, G·q, kv_len]."""
    keys, last = torch.arange(kv_len, device=positions.device), positions.unsqueeze(-1)
    hidden = keys > last
    if window is not None:
        hidden |= keys <= last - window
    mask = torch.zeros(hidden.shape, dtype=dtype, device=positions.device).masked_fill_(hidden, float("-inf"))
    return mask.expand(-1, -1, heads_per_kv, -1, -1).flatten(2, 3)
