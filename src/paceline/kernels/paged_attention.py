"""Attention of short chunks (decode and verification: 1..K+1 queries a row) over the paged cache, with split keys.

Flash-decoding (Dao et al., 2023): the keys of a row are cut into splits, one program each; a second kernel puts the
splits together and, where asked, quantises the token for the FP8 output projection.

Contract
- Query i of row r stands at position kv_lens[r] - Q + i and sees positions up to its own (the last `window` of them
  in a sliding layer). At a negative position (padding rows have kv_len 0) the result is zeros.
- Only blocks of the row's own table that hold positions below its kv_len are read. What lies behind kv_len in the
  last block is loaded as zero: masking the scores alone would let 0 * NaN through.
- Everything is on the device; the grid depends on shapes and on `max_kv_len` alone, so a captured graph serves any
  lengths. A short row ends its surplus programs at once.
- Scores, softmax and sums in float32; a float32 pool is multiplied in float32, not tf32.

The queries of a group of heads that share a key-value head are folded into one tile of Q * G rows, so each key and
value is read once.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from paceline.kernels.attention_reference import attention_reference
from paceline.kernels.fp8 import quantize_rows
from paceline.kernels.triton_support import (
    jit,
    launch_options,
    let_next_start,
    runs_triton,
    tl,
    triton,
    wait_for_previous,
)

_MAX_SPLITS = 16
_SHORT = 512  # keys
_COMBINED = 4096  # elements of partial results that one program puts together
_PROGRAMS = 264  # aimed at: two on each of an H200's 132 multiprocessors
_FP8_MAX = 448.0
_LOG2_E = 1.4426950408889634


@jit
def split_range(kv_len, query_len, num_splits, WINDOW: tl.constexpr, BLOCK_N: tl.constexpr):
    """First position that any query of the row sees, and positions of one split; both multiples of BLOCK_N."""
    first = 0
    if WINDOW > 0:
        first = tl.maximum(kv_len - query_len - WINDOW + 1, 0) // BLOCK_N * BLOCK_N
    tiles = tl.cdiv(kv_len - first, BLOCK_N)
    return first, tl.cdiv(tiles, num_splits) * BLOCK_N


@jit
def block_of(table, position, visible, BLOCK_SIZE: tl.constexpr):
    """Blocks of a row at `position`; 0, and nothing read, where not visible."""
    return tl.load(table + position // BLOCK_SIZE, mask=visible, other=0).to(tl.int64)


@jit
def attend_tile(
    acc, peak, total, q, keys, values, position, q_position, score_scale,
    WINDOW: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One step of online softmax (in base 2): q [M, D], keys and values [N, D]; returns the three sums anew."""
    scores = tl.dot(q, tl.trans(keys.to(q.dtype)), input_precision=PRECISION)
    if MASKED:
        seen = position[None, :] <= q_position[:, None]
        if WINDOW > 0:
            seen = seen & (position[None, :] > q_position[:, None] - WINDOW)
        scores = tl.where(seen, scores, float("-inf"))
    new_peak = tl.maximum(peak, tl.max(scores, 1) * score_scale)
    # A row that has seen nothing yet has the peak -inf, and -inf - -inf is NaN.
    base = tl.where(new_peak == float("-inf"), 0.0, new_peak) if MASKED else new_peak
    weights = tl.exp2(scores * score_scale - base[:, None])
    shrink = tl.exp2(peak - base)
    total = total * shrink + tl.sum(weights, 1)
    acc = acc * shrink[:, None]
    acc = tl.dot(weights.to(q.dtype), values.to(q.dtype), acc, input_precision=PRECISION)
    return acc, new_peak, total


@jit
def _split_kernel(
    q, kv, block_tables, kv_lens, partial, peaks, totals, finished, out,
    token_stride, head_stride, block_stride, slot_stride, value_offset, table_stride,
    num_heads, score_scale, value_scale, num_splits,
    Q: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, BLOCK_SIZE: tl.constexpr, WINDOW: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
    WHOLE: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One split of the keys of one row, for the heads of one key-value head. WHOLE: the only one, and the result."""
    let_next_start(PDL)
    wait_for_previous(PDL)
    kv_head, row, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    m = tl.arange(0, BLOCK_M)
    if not WHOLE:  # noqa: SIM102 - decided while compiling
        if kv_head + split == 0:
            tl.store(finished + row * Q + m, 0, mask=m < Q)
    kv_len = tl.load(kv_lens + row)
    first, width = split_range(kv_len, Q, num_splits, WINDOW, BLOCK_N)
    start = first + split * width
    end = tl.minimum(start + width, kv_len)
    if not WHOLE:  # noqa: SIM102
        if start >= end:
            return
    d = tl.arange(0, BLOCK_D)
    n = tl.arange(0, BLOCK_N)
    query, head = m // GROUP, kv_head * GROUP + m % GROUP
    token = row * Q + query
    in_tile, in_head = m < Q * GROUP, d < D
    q_position = kv_len - Q + query
    q_tile = tl.load(
        q + token.to(tl.int64)[:, None] * token_stride + head[:, None] * head_stride + d[None, :],
        mask=in_tile[:, None] & in_head[None, :], other=0.0,
    )  # fmt: skip
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    table = block_tables + row * table_stride
    pool = kv + kv_head * D + d[None, :]
    for tile in tl.range(start, end, BLOCK_N, num_stages=STAGES):
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
    at = (token.to(tl.int64) * num_heads + head) * num_splits + split
    there = in_tile[:, None] & in_head[None, :]
    if WHOLE:
        mixed = acc * (value_scale / tl.where(total == 0.0, 1.0, total))[:, None]  # 0: a query that saw nothing
        tl.store(out + at[:, None] * D + d[None, :], mixed.to(out.dtype.element_ty), mask=there)
    else:
        tl.store(peaks + at, peak, mask=in_tile)
        tl.store(totals + at, total, mask=in_tile)
        tl.store(partial + at[:, None] * D + d[None, :], acc, mask=there)


@jit
def _combine_kernel(
    partial, peaks, totals, kv_lens, finished, combined, out, out_scales, num_heads, num_splits, value_scale,
    Q: tl.constexpr, D: tl.constexpr, WINDOW: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_S: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_ROW: tl.constexpr, QUANTIZE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """The splits of BLOCK_H heads of one token put together. The program that ends last quantises the token."""
    let_next_start(PDL)
    wait_for_previous(PDL)
    token = tl.program_id(0).to(tl.int64)
    kv_len = tl.load(kv_lens + token // Q)
    first, width = split_range(kv_len, Q, num_splits, WINDOW, BLOCK_N)
    is_real = kv_len - Q + token % Q >= 0
    used = tl.where(is_real, tl.cdiv(kv_len - first, tl.maximum(width, 1)), 0)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    split, d = tl.arange(0, BLOCK_S), tl.arange(0, BLOCK_D)
    at = ((token * num_heads + head) * num_splits)[:, None] + split[None, :]
    there = (head < num_heads)[:, None] & (split < used)[None, :]
    part = tl.load(
        partial + at[:, :, None] * D + d[None, None, :], mask=there[:, :, None] & (d < D)[None, None, :], other=0.0
    )
    peak = tl.load(peaks + at, mask=there, other=float("-inf"))
    total = tl.load(totals + at, mask=there, other=0.0)
    top = tl.max(peak, 1)
    weight = tl.exp2(peak - tl.where(top == float("-inf"), 0.0, top)[:, None])
    acc = tl.sum(part * weight[:, :, None], 1)
    if is_real:
        whole = tl.sum(weight * total, 1)
        acc = acc * (value_scale / tl.where(head < num_heads, whole, 1.0))[:, None]
    offset = token * num_heads * D + head[:, None] * D + d[None, :]
    mask = (head < num_heads)[:, None] & (d < D)[None, :]
    if QUANTIZE:
        tl.store(combined + offset, acc, mask=mask)
        tl.debug_barrier()
        if tl.atomic_add(finished + token, 1) == tl.num_programs(1) - 1:
            element = tl.arange(0, BLOCK_ROW)
            in_row = element < num_heads * D
            # past the first-level cache, which does not see what other programs wrote
            row = tl.load(combined + token * num_heads * D + element, mask=in_row, other=0.0, cache_modifier=".cg")
            # NaN drops out of the maximum and stays in the data, which is enough to keep a bad token bad.
            scale = tl.maximum(tl.max(tl.abs(row), 0), 1e-12) / 448.0
            tl.store(out_scales + token, scale)
            tl.store(out + token * num_heads * D + element, (row / scale).to(out.dtype.element_ty), mask=in_row)
    else:
        tl.store(out + offset, acc.to(out.dtype.element_ty), mask=mask)


class Tile(NamedTuple):
    keys: int
    stages: int
    warps: int = 4


def tile_for(num_rows: int, head_dim: int, cache_bytes: int, longest: int) -> Tile:
    """For a tile of `num_rows` queries times heads, elements of `cache_bytes` and at most `longest` keys a row;
    measured on an H200, docs/performance.md."""
    if head_dim <= 64:
        return Tile(128, 3)
    if cache_bytes == 1:  # converting, not reading, takes the time: small tiles keep more programs at it
        return Tile(32, 5, 4 if num_rows <= 16 else 2)
    if num_rows <= 16:
        return Tile(64, 3)
    return Tile(64, 3, 2) if longest <= _SHORT else Tile(128, 2)


def num_splits_for(num_rows: int, num_kv_heads: int, max_kv_len: int, tile_keys: int) -> int:
    """Splits of the keys: enough programs to fill the card, and no more than there are tiles of keys."""
    wanted = _PROGRAMS // (num_rows * num_kv_heads)
    return max(1, min(wanted, _MAX_SPLITS, -(-max_kv_len // tile_keys)))


def paged_attention(
    q: Tensor, kv_layer: Tensor, block_tables: Tensor, kv_lens: Tensor, query_len: int,
    window: int | None = None, *, k_scale: float = 1.0, v_scale: float = 1.0, softmax_scale: float | None = None,
    max_kv_len: int | None = None, num_splits: int | None = None, quantize: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """Rows of `query_len` queries each over one layer of the pool.

    q             [T, H, D], T = R * query_len, heads and rows may be strided (a view of the fused projection)
    kv_layer      [blocks, block_size, 2, KV, D] float32, bfloat16 or float8_e4m3fn (then times k_scale, v_scale)
    block_tables  [R, W] int32; kv_lens [R] int32, the queries' own keys counted in
    softmax_scale by default 1 / sqrt(D)
    max_kv_len    an upper bound of kv_lens known on the host, by default W * block_size; it only chooses the splits

    Returns [T, H * D] in q's dtype; with `quantize` float8_e4m3fn data [T, H * D] and scales [T] float32, a token's
    scale being its largest magnitude / 448.
    """
    num_tokens, num_heads, head_dim = q.shape
    num_rows, block_size, num_kv_heads = kv_lens.shape[0], kv_layer.shape[1], kv_layer.shape[3]
    if num_tokens != num_rows * query_len:
        raise ValueError(f"{num_tokens} tokens are not {num_rows} rows of {query_len} queries.")
    softmax_scale = head_dim**-0.5 if softmax_scale is None else softmax_scale
    if not runs_triton(q):
        starts = list(range(0, num_tokens + 1, query_len))
        attended = attention_reference(
            q, kv_layer, block_tables, starts, kv_lens.tolist(), window, k_scale, v_scale, softmax_scale
        ).flatten(1)
        return quantize_tokens(attended) if quantize else attended.to(q.dtype)

    kv_lens = kv_lens.contiguous()
    group = num_heads // num_kv_heads
    block_m = max(16, triton.next_power_of_2(query_len * group))
    longest = max_kv_len or block_tables.shape[1] * block_size
    tile = tile_for(block_m, head_dim, kv_layer.element_size(), longest)
    splits = num_splits or num_splits_for(num_rows, num_kv_heads, longest, tile.keys)
    block_d, window_or_0 = triton.next_power_of_2(head_dim), window or 0
    device = q.device
    size, whole = num_heads * head_dim, splits == 1

    def attend(partial: Tensor | None, peaks: Tensor | None, totals: Tensor | None, finished: Tensor | None,
               out: Tensor | None) -> None:  # fmt: skip
        _split_kernel[(num_kv_heads, num_rows, splits)](
            q, kv_layer, block_tables, kv_lens, partial, peaks, totals, finished, out,
            q.stride(0), q.stride(1), kv_layer.stride(0), kv_layer.stride(1), kv_layer.stride(2),
            block_tables.stride(0), num_heads, softmax_scale * k_scale * _LOG2_E, v_scale, splits,
            Q=query_len, GROUP=group, D=head_dim, BLOCK_SIZE=block_size, WINDOW=window_or_0,
            BLOCK_M=block_m, BLOCK_D=block_d, BLOCK_N=tile.keys, STAGES=tile.stages, WHOLE=whole,
            PRECISION="ieee" if q.dtype == torch.float32 else "tf32", **launch_options(q, num_warps=tile.warps),
        )  # fmt: skip

    if whole:  # enough rows to fill the card: nothing to put together
        attended = torch.empty((num_tokens, size), dtype=q.dtype, device=device)
        attend(None, None, None, None, attended)
        if not quantize:
            return attended
        quantized = quantize_rows(attended)
        return quantized.data, quantized.scale
    partial = torch.empty((num_tokens, num_heads, splits, head_dim), dtype=torch.float32, device=device)
    peaks, totals = torch.empty((2, num_tokens, num_heads, splits), dtype=torch.float32, device=device)
    finished = torch.empty(num_tokens, dtype=torch.int32, device=device)
    attend(partial, peaks, totals, finished, None)
    out = torch.empty((num_tokens, size), dtype=torch.float8_e4m3fn if quantize else q.dtype, device=device)
    scales = torch.empty(num_tokens if quantize else 1, dtype=torch.float32, device=device)
    combined = torch.empty((num_tokens, size), dtype=torch.float32, device=device) if quantize else partial
    block_s = triton.next_power_of_2(splits)
    block_h = min(triton.next_power_of_2(num_heads), max(1, _COMBINED // (block_s * block_d)))
    _combine_kernel[(num_tokens, triton.cdiv(num_heads, block_h))](
        partial, peaks, totals, kv_lens, finished, combined, out, scales, num_heads, splits, v_scale,
        Q=query_len, D=head_dim, WINDOW=window_or_0, BLOCK_H=block_h, BLOCK_D=block_d, BLOCK_S=block_s,
        BLOCK_N=tile.keys, BLOCK_ROW=triton.next_power_of_2(size), QUANTIZE=quantize, **launch_options(q, num_warps=4),
    )  # fmt: skip
    return (out, scales) if quantize else out


def quantize_tokens(x: Tensor) -> tuple[Tensor, Tensor]:
    """float8_e4m3fn data and float32 scales [T] of x [T, N] float32: largest magnitude / 448."""
    scale = x.nan_to_num(0.0, 0.0, 0.0).abs().amax(-1).clamp(min=1e-12) / _FP8_MAX
    return (x / scale[:, None]).to(torch.float8_e4m3fn), scale
