"""y = x·Wᵀ + b with both operands in FP8: one scale a row of x, one scale a row of W.

Contract
- Any M from 1 up. K and N must be multiples of 16; other shapes run the reference (dequantise, then a float32 product).
- Products are summed in float32; the scales are applied to the sum, once.
- A row of x whose scale is NaN gives a row of NaN (p31).
- No host synchronisation; safe in a captured graph on one stream (see `_workspace`).

Up to `_SMALL_ROWS` rows the product is bound by reading W, and a Triton kernel does it: W is the left operand, so that
Hopper's wgmma takes 64 of its rows however few rows x has. Above that it is bound by arithmetic and cuBLASLt does it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from paceline.kernels.fp8 import QuantizedRows
from paceline.kernels.triton_support import (
    jit,
    launch_options,
    let_next_start,
    runs_triton,
    tl,
    triton,
    wait_for_previous,
)

_SMALL_ROWS = 128


class Tiles(NamedTuple):
    """How one small product is cut: a program makes BN outputs of BM rows from K / SPLIT inputs."""

    bn: int
    bk: int
    split: int
    stages: int
    warps: int


def fp8_linear(
    x: QuantizedRows,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """x [M, K], weight [N, K] E4M3, weight_scale [N] float32, bias [N] -> [M, N] in `out_dtype`."""
    rows, inputs = x.data.shape
    if weight.shape[1] != inputs:
        raise ValueError(f"fp8_linear: x has {inputs} columns but the weight has {weight.shape[1]}")
    aligned = inputs % 16 == 0 and weight.shape[0] % 16 == 0
    if not runs_triton(x.data) or not aligned or rows == 0:
        return fp8_linear_reference(x, weight, weight_scale, bias, out_dtype)
    if rows <= _SMALL_ROWS or not x.data.is_cuda:
        return _small(x, weight, weight_scale, bias, out_dtype)
    return _large(x, weight, weight_scale, bias, out_dtype)


def fp8_linear_reference(
    x: QuantizedRows,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    product = x.data.float() @ weight.float().T
    product = product * (x.scale.unsqueeze(1) * weight_scale)
    return (product if bias is None else product + bias.float()).to(out_dtype)


def _large(
    x: QuantizedRows, weight: Tensor, weight_scale: Tensor, bias: Tensor | None, out_dtype: torch.dtype
) -> Tensor:
    product = torch._scaled_mm(
        x.data, weight.T, scale_a=x.scale.unsqueeze(1), scale_b=weight_scale.unsqueeze(0),
        out_dtype=torch.bfloat16, use_fast_accum=True,
    )  # fmt: skip
    product = product if bias is None else product.add_(bias)
    return product.to(out_dtype)


def _tiles(outputs: int, inputs: int, rows: int) -> Tiles:
    return Tiles(bn=64, bk=128 if rows > 64 else 256, split=1, stages=4, warps=4)


def _small(
    x: QuantizedRows, weight: Tensor, weight_scale: Tensor, bias: Tensor | None, out_dtype: torch.dtype
) -> Tensor:
    rows, inputs = x.data.shape
    outputs = weight.shape[0]
    tiles = _tiles(outputs, inputs, rows)
    bm = min(128, max(16, triton.next_power_of_2(rows)))
    out = torch.empty(rows, outputs, dtype=out_dtype, device=weight.device)
    grid = (triton.cdiv(outputs, tiles.bn), triton.cdiv(rows, bm))
    _product_kernel[grid](
        x.data, x.scale, weight, weight_scale, bias, out, rows, outputs, inputs, x.data.stride(0), weight.stride(0),
        BM=bm, BN=tiles.bn, BK=tiles.bk, HAS_BIAS=bias is not None, EVEN_K=inputs % tiles.bk == 0,
        **launch_options(weight, num_warps=tiles.warps, num_stages=tiles.stages),
    )  # fmt: skip
    return out


@jit
def _product_kernel(
    x_ptr, x_scale_ptr, w_ptr, w_scale_ptr, bias_ptr, out_ptr, rows, outputs, inputs, x_stride, w_stride,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, HAS_BIAS: tl.constexpr, EVEN_K: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    # Rows past the end read row 0 again: loads need no mask, and nothing of them is stored.
    x_at = x_ptr + tl.where(m < rows, m, 0).to(tl.int64)[None, :] * x_stride + k[:, None]
    w_at = w_ptr + tl.where(n < outputs, n, 0).to(tl.int64)[:, None] * w_stride + k[None, :]
    w_scale = tl.load(w_scale_ptr + n, mask=n < outputs, other=0.0)
    let_next_start(PDL)
    wait_for_previous(PDL)
    total = tl.zeros((BN, BM), dtype=tl.float32)
    for start in range(0, inputs, BK):
        if EVEN_K:
            w = tl.load(w_at)
            x = tl.load(x_at)
        else:
            w = tl.load(w_at, mask=(k < inputs - start)[None, :], other=0.0)
            x = tl.load(x_at, mask=(k < inputs - start)[:, None], other=0.0)
        total = tl.dot(w, x, total)
        x_at += BK
        w_at += BK
    total *= w_scale[:, None] * tl.load(x_scale_ptr + m, mask=m < rows, other=0.0)[None, :]
    if HAS_BIAS:
        total += tl.load(bias_ptr + n, mask=n < outputs, other=0.0).to(tl.float32)[:, None]
    out_at = out_ptr + m.to(tl.int64)[None, :] * outputs + n[:, None]
    tl.store(out_at, total.to(out_ptr.dtype.element_ty), mask=(m < rows)[None, :] & (n < outputs)[:, None])
