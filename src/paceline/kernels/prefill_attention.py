"""Causal attention of ragged chunks over the paged cache: prefill, or a batch that mixes chunks and single tokens.

Flash attention (Dao, 2023), one program for BLOCK_Q queries of one row and one key-value head; the G heads that share
it are folded into the tile's rows (BLOCK_Q * G of them). Tiles that every query of the program sees whole are taken
without masks.

Contract: as in paged_attention.py, with the queries of row r at query_starts[r] .. query_starts[r+1] of `q` and their
last one at position kv_lens[r] - 1. The grid depends on the number of tokens and rows alone; a program finds its row
in query_starts.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from paceline.kernels.attention_reference import attention_reference
from paceline.kernels.paged_attention import attend_tile, block_of
from paceline.kernels.triton_support import (
    jit_for_any,
    launch_options,
    let_next_start,
    runs_triton,
    tl,
    triton,
    wait_for_previous,
)

_LOG2_E = 1.4426950408889634
_LEAST_ROWS = 128  # that a program is compiled for: one for each power of two would be compiled while requests wait


class Tile(NamedTuple):
    rows: int  # of a program: queries times heads of a group
    keys: int
    stages: int
    warps: int


_SMALL, _LARGE, _HUGE = Tile(64, 64, 3, 4), Tile(128, 64, 5, 8), Tile(256, 64, 3, 8)
_FLOAT32 = Tile(64, 32, 1, 4)


def tile_for(rows: int, head_dim: int, dtype: torch.dtype) -> Tile:
    """For a longest chunk of `rows` queries times heads of a group; measured on an H200, docs/performance.md."""
    if dtype == torch.float32:
        return _FLOAT32
    if rows <= _SMALL.rows:
        return _SMALL
    return _HUGE if head_dim > 64 and rows >= 8 * _HUGE.rows else _LARGE


@jit_for_any("num_rows", "table_stride")
def _prefill_kernel(
    q, kv, block_tables, query_starts, kv_lens, out,
    token_stride, head_stride, block_stride, slot_stride, value_offset, table_stride,
    num_heads, num_rows, score_scale, value_scale,
    GROUP: tl.constexpr, D: tl.constexpr, BLOCK_SIZE: tl.constexpr, WINDOW: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_R: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    wait_for_previous(PDL)
    let_next_start(PDL)
    kv_head = tl.program_id(0)
    program = tl.num_programs(1) - 1 - tl.program_id(1)  # the longest of a row first
    # Row r owns programs query_starts[r] // BLOCK_Q + r and on: enough for its queries, counted without a scan.
    rows = tl.arange(0, BLOCK_R)
    firsts = tl.load(query_starts + rows, mask=rows < num_rows, other=2147483647 - BLOCK_R) // BLOCK_Q + rows
    row = tl.sum((firsts <= program).to(tl.int32), 0) - 1
    row_start = tl.load(query_starts + row)
    query_len = tl.load(query_starts + row + 1) - row_start
    first_query = (program - (row_start // BLOCK_Q + row)) * BLOCK_Q
    if first_query >= query_len:
        return
    kv_len = tl.load(kv_lens + row)
    first_position = kv_len - query_len + first_query
    last_position = tl.minimum(first_position + BLOCK_Q, kv_len) - 1

    m = tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    n = tl.arange(0, BLOCK_N)
    query, head = m // GROUP, kv_head * GROUP + m % GROUP
    token = row_start + first_query + query
    in_tile, in_head = (query < BLOCK_Q) & (first_query + query < query_len), d < D
    q_position = first_position + query
    q_tile = tl.load(
        q + token.to(tl.int64)[:, None] * token_stride + head[:, None] * head_stride + d[None, :],
        mask=in_tile[:, None] & in_head[None, :], other=0.0,
    )  # fmt: skip
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    table = block_tables + row * table_stride
    pool = kv + kv_head * D + d[None, :]

    start, end = 0, last_position + 1
    whole = tl.maximum(first_position + 1, 0) // BLOCK_N * BLOCK_N  # every query sees every position below
    if WINDOW > 0:
        start = tl.maximum(first_position - WINDOW + 1, 0) // BLOCK_N * BLOCK_N
        whole = start
    for tile in tl.range(start, whole, BLOCK_N, num_stages=STAGES):
        position = tile + n
        block = block_of(table, position, position >= 0, BLOCK_SIZE)
        at = pool + (block * block_stride + (position % BLOCK_SIZE) * slot_stride)[:, None]
        if BLOCK_D == D:
            keys = tl.load(at)
            values = tl.load(at + value_offset)
        else:
            keys = tl.load(at, mask=in_head[None, :], other=0.0)
            values = tl.load(at + value_offset, mask=in_head[None, :], other=0.0)
        acc, peak, total = attend_tile(
            acc, peak, total, q_tile, keys, values, position, q_position, score_scale, WINDOW, False, PRECISION
        )
    for tile in tl.range(whole, end, BLOCK_N, num_stages=1):
        position = tile + n
        visible = position < end
        block = block_of(table, position, visible, BLOCK_SIZE)
        at = pool + (block * block_stride + (position % BLOCK_SIZE) * slot_stride)[:, None]
        there = visible[:, None] & in_head[None, :]
        keys = tl.load(at, mask=there, other=0.0)
        values = tl.load(at + value_offset, mask=there, other=0.0)
        acc, peak, total = attend_tile(
            acc, peak, total, q_tile, keys, values, tl.where(visible, position, 2147483647), q_position, score_scale,
            WINDOW, True, PRECISION,
        )  # fmt: skip
    real = q_position >= 0
    acc = tl.where(real[:, None], acc * (value_scale / tl.where(real, total, 1.0))[:, None], 0.0)
    target = out + token.to(tl.int64)[:, None] * (num_heads * D) + head[:, None] * D + d[None, :]
    tl.store(target, acc.to(out.dtype.element_ty), mask=in_tile[:, None] & in_head[None, :])


def prefill_attention(
    q: Tensor, kv_layer: Tensor, block_tables: Tensor, query_starts: Tensor, kv_lens: Tensor, max_query_len: int,
    window: int | None = None, *, k_scale: float = 1.0, v_scale: float = 1.0, softmax_scale: float | None = None,
) -> Tensor:  # fmt: skip
    """Ragged rows of queries over one layer of the pool -> [T, H * D] in q's dtype.

    q             [T, H, D]; rows and heads may be strided
    kv_layer      [blocks, block_size, 2, KV, D] float32, bfloat16 or float8_e4m3fn (then times k_scale, v_scale)
    block_tables  [R, W] int32
    query_starts  [R+1] int32: row r's queries are query_starts[r] .. query_starts[r+1]; tokens behind the last row's
                  are not written
    kv_lens       [R] int32, the queries' own keys counted in
    max_query_len an upper bound of the rows' numbers of queries known on the host; it only chooses the tile
    """
    num_tokens, num_heads, head_dim = q.shape
    num_rows, num_kv_heads = kv_lens.shape[0], kv_layer.shape[3]
    softmax_scale = head_dim**-0.5 if softmax_scale is None else softmax_scale
    if not runs_triton(q):
        attended = attention_reference(
            q, kv_layer, block_tables, query_starts.tolist(), kv_lens.tolist(), window, k_scale, v_scale, softmax_scale
        )
        return attended.flatten(1).to(q.dtype)
    query_starts, kv_lens = query_starts.contiguous(), kv_lens.contiguous()
    group = num_heads // num_kv_heads
    tile = tile_for(max_query_len * group, head_dim, q.dtype)
    block_m = max(tile.rows, triton.next_power_of_2(group))
    block_q = block_m // group
    out = torch.empty((num_tokens, num_heads * head_dim), dtype=q.dtype, device=q.device)
    _prefill_kernel[(num_kv_heads, num_tokens // block_q + num_rows)](
        q, kv_layer, block_tables, query_starts, kv_lens, out,
        q.stride(0), q.stride(1), kv_layer.stride(0), kv_layer.stride(1), kv_layer.stride(2), block_tables.stride(0),
        num_heads, num_rows, softmax_scale * k_scale * _LOG2_E, v_scale,
        GROUP=group, D=head_dim, BLOCK_SIZE=kv_layer.shape[1], WINDOW=window or 0,
        BLOCK_Q=block_q, BLOCK_M=block_m, BLOCK_D=triton.next_power_of_2(head_dim), BLOCK_N=tile.keys,
        BLOCK_R=max(_LEAST_ROWS, triton.next_power_of_2(num_rows)), STAGES=tile.stages,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32", **launch_options(q, num_warps=tile.warps),
    )  # fmt: skip
    return out
