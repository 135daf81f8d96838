"""y = x·Wᵀ + b with both operands in FP8: one scale a row of x, one scale a row of W.

Contract
- Any M from 1 up. K and N must be multiples of 16; other shapes run the reference (dequantise, then a float32 product).
- Sums are float32 as far as the tensor cores keep them; the scales are applied to the sum, once.
- A row of x whose scale is NaN gives a row of NaN (p31).
- No host synchronisation; safe in a captured graph.

Three ways, by what bounds them (figures: docs/performance.md):
- up to 64 rows on Hopper, 192 by wide weights: `fp8_rows`, which reads W at the speed of the memory;
- up to 128 rows elsewhere: a Triton kernel of the same kind;
- more: cuBLASLt without scales (its product with a scale a row is 10 to 30 % slower), and the scales in what comes
  next: `fp8_product` leaves them to a kernel that reads the product anyway, `fp8_linear` applies them itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.kernels import fp8_rows
from paceline.kernels.fp8 import QuantizedRows
from paceline.kernels.product import Product
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
_TILE, _K_TILE, _STAGES = 64, 256, 6  # best of some 25 on one H200 at 8 rows by 8192 x 8192 and 8192 x 28672


def fp8_linear(
    x: QuantizedRows,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """x [M, K], weight [N, K] E4M3, weight_scale [N] float32, bias [N] -> [M, N] in `out_dtype`."""
    product = fp8_product(x, weight, weight_scale, bias, out_dtype)
    return _settled(product, bias, out_dtype)


def fp8_product(
    x: QuantizedRows,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
) -> Product:
    """The same, but where applying the scales would take a kernel of its own they are left to the reader (with no bias
    added either): see `Product`."""
    rows, inputs = x.data.shape
    outputs = weight.shape[0]
    if weight.shape[1] != inputs:
        raise ValueError(f"fp8_linear: x has {inputs} columns but the weight has {weight.shape[1]}")
    aligned = inputs % 16 == 0 and outputs % 16 == 0
    if not runs_triton(x.data) or not aligned or rows == 0:
        return Product(fp8_linear_reference(x, weight, weight_scale, bias, out_dtype))
    if fp8_rows.fits(x.data, weight, out_dtype):
        return Product(fp8_rows.fp8_rows(x, weight, weight_scale, bias, out_dtype))
    if (rows <= _SMALL_ROWS or not x.data.is_cuda) and not _on_hopper(x.data):
        return Product(_small(x, weight, weight_scale, bias, out_dtype))
    one = _one(x.data.device)
    product = torch._scaled_mm(
        x.data, weight.T, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
    )
    return Product(product, x.scale, weight_scale)


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


def _settled(product: Product, bias: Tensor | None, out_dtype: torch.dtype) -> Tensor:
    if product.row_scale is None or product.column_scale is None:
        return product.data
    rows, outputs = product.data.shape
    out = product.data if out_dtype == product.data.dtype else product.data.new_empty(rows, outputs, dtype=out_dtype)
    _apply_scales_kernel[(rows, triton.cdiv(outputs, 1024))](
        product.data, product.row_scale, product.column_scale, bias, out, outputs,
        HAS_BIAS=bias is not None, BLOCK=1024, **launch_options(out, num_warps=4),
    )  # fmt: skip
    return out


_ones: dict[torch.device, Tensor] = {}


def _one(device: torch.device) -> Tensor:
    found = _ones.get(device)
    if found is None:
        found = torch.ones((), device=device)
        # What is allocated while a graph is captured belongs to that graph and must not be kept.
        if not torch.cuda.is_current_stream_capturing():
            _ones[device] = found
    return found


def _on_hopper(x: Tensor) -> bool:
    return x.is_cuda and torch.cuda.get_device_capability(x.device)[0] == 9


def _small(
    x: QuantizedRows, weight: Tensor, weight_scale: Tensor, bias: Tensor | None, out_dtype: torch.dtype
) -> Tensor:
    rows, inputs = x.data.shape
    outputs = weight.shape[0]
    bm = min(128, max(16, triton.next_power_of_2(rows)))
    k_tile = _K_TILE if bm <= 64 else _K_TILE // 2
    out = torch.empty(rows, outputs, dtype=out_dtype, device=weight.device)
    _product_kernel[(triton.cdiv(outputs, _TILE), triton.cdiv(rows, bm))](
        x.data, x.scale, weight, weight_scale, bias, out, rows, outputs, inputs, x.data.stride(0), weight.stride(0),
        BM=bm, BN=_TILE, BK=k_tile, HAS_BIAS=bias is not None, EVEN_K=inputs % k_tile == 0,
        **launch_options(weight, num_warps=4, num_stages=_STAGES if bm <= 64 else 4),
    )  # fmt: skip
    return out


@jit
def _apply_scales_kernel(
    product_ptr, row_scale_ptr, column_scale_ptr, bias_ptr, out_ptr, outputs, HAS_BIAS: tl.constexpr,
    BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = n < outputs
    let_next_start(PDL)
    column_scale = tl.load(column_scale_ptr + n, mask=inside, other=0.0)
    wait_for_previous(PDL)
    value = tl.load(product_ptr + row * outputs + n, mask=inside, other=0.0).to(tl.float32)
    value = value * (tl.load(row_scale_ptr + row) * column_scale)
    if HAS_BIAS:
        value += tl.load(bias_ptr + n, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * outputs + n, value.to(out_ptr.dtype.element_ty), mask=inside)


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
