"""One pass over the fused projection: norm the heads where the model does (Qwen3), rotate, write the KV pool.

Contract
- qkv [T, (H + 2*KV) * D], rows may be strided. Queries are rotated in place; keys and values leave for the pool and
  their part of `qkv` is not changed.
- A token with a negative position is padding: nothing of it is read or written. A token whose slot lies in the null
  block is rotated, and its key and value are dropped.
- A pool in float8_e4m3fn holds key / k_scale and value / v_scale, saturated at 448; NaN and infinities become NaN,
  so that a row that went bad stays bad.
- Arithmetic in float32, one rounding at the end.
"""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.kernels.triton_support import (
    jit,
    launch_options,
    let_next_start,
    runs_triton,
    tl,
    triton,
    wait_for_previous,
)

FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0
_TILE = 1024  # elements of heads that one program takes


@jit
def _saturate(x):
    """Into float8's range; what is not finite becomes NaN (a plain minimum would turn NaN into 448)."""
    clamped = tl.minimum(tl.maximum(x, -448.0), 448.0)
    return tl.where(tl.abs(x) < float("inf"), clamped, float("nan"))


@jit
def _rotary_kv_kernel(
    qkv, table, positions, slots, kv, q_weight, k_weight,
    row_stride, num_heads, num_kv_heads, eps, k_inverse, v_inverse,
    D: tl.constexpr, BLOCK_HALF: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    NORM: tl.constexpr, IS_FP8: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    wait_for_previous(PDL)
    let_next_start(PDL)
    token = tl.program_id(0).to(tl.int64)
    position = tl.load(positions + token).to(tl.int64)
    if position < 0:
        return
    slot = tl.load(slots + token).to(tl.int64)
    HALF: tl.constexpr = D // 2
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    half = tl.arange(0, BLOCK_HALF)
    in_half = half < HALF
    mask = (head < num_heads + 2 * num_kv_heads)[:, None] & in_half[None, :]
    is_query = (head < num_heads)[:, None]
    is_value = (head >= num_heads + num_kv_heads)[:, None]

    source = qkv + token * row_stride + head[:, None] * D + half[None, :]
    x1 = tl.load(source, mask=mask, other=0.0).to(tl.float32)
    x2 = tl.load(source + HALF, mask=mask, other=0.0).to(tl.float32)
    y1, y2 = x1, x2
    if NORM:
        scale = tl.rsqrt((tl.sum(x1 * x1, 1) + tl.sum(x2 * x2, 1)) / D + eps)[:, None]
        q1 = tl.load(q_weight + half, mask=in_half, other=0.0).to(tl.float32)
        q2 = tl.load(q_weight + HALF + half, mask=in_half, other=0.0).to(tl.float32)
        k1 = tl.load(k_weight + half, mask=in_half, other=0.0).to(tl.float32)
        k2 = tl.load(k_weight + HALF + half, mask=in_half, other=0.0).to(tl.float32)
        y1 = x1 * scale * tl.where(is_query, q1[None, :], k1[None, :])
        y2 = x2 * scale * tl.where(is_query, q2[None, :], k2[None, :])
    entry = table + position * (2 * D) + half
    cos1 = tl.load(entry, mask=in_half, other=0.0).to(tl.float32)[None, :]
    cos2 = tl.load(entry + HALF, mask=in_half, other=0.0).to(tl.float32)[None, :]
    sin1 = tl.load(entry + D, mask=in_half, other=0.0).to(tl.float32)[None, :]
    sin2 = tl.load(entry + D + HALF, mask=in_half, other=0.0).to(tl.float32)[None, :]
    y1, y2 = y1 * cos1 + y2 * sin1, y2 * cos2 + y1 * sin2

    tl.store(source, y1.to(qkv.dtype.element_ty), mask=mask & is_query)
    tl.store(source + HALF, y2.to(qkv.dtype.element_ty), mask=mask & is_query)
    if slot < BLOCK_SIZE:
        return
    y1 = tl.where(is_value, x1, y1)
    y2 = tl.where(is_value, x2, y2)
    if IS_FP8:
        inverse = tl.where(is_value, v_inverse, k_inverse)
        y1 = _saturate(y1 * inverse)
        y2 = _saturate(y2 * inverse)
    # Keys, then values, as in the projection: head - num_heads counts through both.
    target = kv + slot * (2 * num_kv_heads * D) + (head - num_heads)[:, None] * D + half[None, :]
    kept = mask & (head >= num_heads)[:, None]
    tl.store(target, y1.to(kv.dtype.element_ty), mask=kept)
    tl.store(target + HALF, y2.to(kv.dtype.element_ty), mask=kept)


def rotary_kv_write_(
    qkv: Tensor, rotary_table: Tensor, positions: Tensor, slots: Tensor, kv_layer: Tensor,
    num_heads: int, num_kv_heads: int, *,
    q_norm: Tensor | None = None, k_norm: Tensor | None = None, eps: float = 1e-6,
    k_scale: float = 1.0, v_scale: float = 1.0,
) -> None:  # fmt: skip
    """Rotate the queries of `qkv` in place and store its keys and values in one layer of the pool.

    qkv                [T, (H + 2*KV) * D], last dimension contiguous
    rotary_table       [P, 2, D]: cos, then sin with a minus in its first half (layers/rotary.py)
    positions, slots   [T] int32 or int64
    kv_layer           [blocks, block_size, 2, KV, D] float32, bfloat16 or float8_e4m3fn
    q_norm, k_norm     [D] weights of the RMS norm of each head, both or neither
    """
    if not runs_triton(qkv):
        rotary_kv_write_reference_(
            qkv, rotary_table, positions, slots, kv_layer, num_heads, num_kv_heads,
            q_norm=q_norm, k_norm=k_norm, eps=eps, k_scale=k_scale, v_scale=v_scale,
        )  # fmt: skip
        return
    positions, slots = positions.contiguous(), slots.contiguous()
    head_dim = kv_layer.shape[-1]
    block_half = triton.next_power_of_2(head_dim // 2)
    block_heads = max(1, _TILE // (2 * block_half))
    has_norm = q_norm is not None and k_norm is not None
    grid = (qkv.shape[0], triton.cdiv(num_heads + 2 * num_kv_heads, block_heads))
    _rotary_kv_kernel[grid](
        qkv, rotary_table, positions, slots, kv_layer, q_norm if has_norm else qkv, k_norm if has_norm else qkv,
        qkv.stride(0), num_heads, num_kv_heads, eps, 1.0 / k_scale, 1.0 / v_scale,
        D=head_dim, BLOCK_HALF=block_half, BLOCK_H=block_heads, BLOCK_SIZE=kv_layer.shape[1],
        NORM=has_norm, IS_FP8=kv_layer.dtype == FP8, **launch_options(qkv, num_warps=4),
    )  # fmt: skip


def rotary_kv_write_reference_(
    qkv: Tensor, rotary_table: Tensor, positions: Tensor, slots: Tensor, kv_layer: Tensor,
    num_heads: int, num_kv_heads: int, *,
    q_norm: Tensor | None = None, k_norm: Tensor | None = None, eps: float = 1e-6,
    k_scale: float = 1.0, v_scale: float = 1.0,
) -> None:  # fmt: skip
    block_size, head_dim = kv_layer.shape[1], kv_layer.shape[-1]
    heads = qkv.view(qkv.shape[0], -1, head_dim)
    queries, keys, values = heads.float().split([num_heads, num_kv_heads, num_kv_heads], dim=1)
    if q_norm is not None and k_norm is not None:
        queries, keys = _norm(queries, q_norm, eps), _norm(keys, k_norm, eps)
    real = positions >= 0
    entries = rotary_table[positions.clamp(min=0).long()].float()  # [T, 2, D]
    cos, sin = entries[:, :1], entries[:, 1:]
    queries = queries * cos + queries.roll(head_dim // 2, -1) * sin
    keys = keys * cos + keys.roll(head_dim // 2, -1) * sin
    heads[:, :num_heads] = torch.where(real[:, None, None], queries.to(qkv.dtype), heads[:, :num_heads])
    kv = torch.stack((_cast(keys, kv_layer.dtype, k_scale), _cast(values, kv_layer.dtype, v_scale)), dim=1)
    kept = real & (slots >= block_size)
    # float8 tensors are indexed as bytes: torch has no such copy for them on a CPU
    entry = kv_layer.view(-1, *kv_layer.shape[2:])
    raw = torch.uint8 if kv_layer.dtype == FP8 else kv_layer.dtype
    entry.view(raw)[slots[kept].long()] = kv[kept].view(raw)


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.float()


def _cast(x: Tensor, dtype: torch.dtype, scale: float) -> Tensor:
    if dtype != FP8:
        return x.to(dtype)
    x = x * (1.0 / scale)
    return torch.where(x.isfinite(), x.clamp(-FP8_MAX, FP8_MAX), torch.nan).to(FP8)
