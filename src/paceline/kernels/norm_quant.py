"""Residual sum, RMS norm (Zhang & Sennrich, 2019) and FP8 quantisation of a row, in one kernel.

Contract
- `residual` is updated in place and rounded to its dtype before the norm, as separate operations would do it.
- The norm is computed in float32 and is not rounded to bfloat16 between norm and quantisation.
- Without a residual `x` itself is normed and returned as the residual.
- `x` may be a product that still owes its scales (`Product`), if there is a residual to add it to.
"""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.kernels.fp8 import (
    QuantizedRows,
    empty_rows,
    quantize_block,
    quantize_rows_reference,
    row_warps,
)
from paceline.kernels.product import Product, as_product
from paceline.kernels.triton_support import (
    jit,
    launch_options,
    let_next_start,
    runs_triton,
    tl,
    triton,
    wait_for_previous,
)

_ROW_LIMIT = 32768


def add_rms_norm_quant(
    x: Tensor | Product, residual: Tensor | None, weight: Tensor, eps: float
) -> tuple[QuantizedRows, Tensor]:
    """x [M, D], residual [M, D] | None, weight [D] -> (norm(residual + x) in E4M3, the updated residual)."""
    x = as_product(x)
    if not _fused(x.data):
        return add_rms_norm_quant_reference(x, residual, weight, eps)
    out = empty_rows(x.data, x.data.shape[1])
    _launch(x, residual, weight, eps, out.data, out.scale)
    return out, x.data if residual is None else residual


def add_rms_norm(x: Tensor | Product, residual: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    """The same in x's dtype: norm(residual + x) [M, D]; the residual is updated in place."""
    x = as_product(x)
    if not _fused(x.data):
        return add_rms_norm_reference(x, residual, weight, eps)
    out = torch.empty_like(x.data)
    _launch(x, residual, weight, eps, out, None)
    return out


def add_rms_norm_quant_reference(
    x: Tensor | Product, residual: Tensor | None, weight: Tensor, eps: float
) -> tuple[QuantizedRows, Tensor]:
    residual = _add(x, residual)
    return quantize_rows_reference(_norm(residual, weight, eps)), residual


def add_rms_norm_reference(x: Tensor | Product, residual: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    x = as_product(x)
    return _norm(_add(x, residual), weight, eps).to(x.data.dtype)


def _add(x: Tensor | Product, residual: Tensor | None) -> Tensor:
    x = as_product(x)
    return x.data if residual is None else residual.copy_(residual.float() + x.value())


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    values = x.float()
    return values * torch.rsqrt(values.square().mean(dim=1, keepdim=True) + eps) * weight.float()


def _fused(x: Tensor) -> bool:
    return runs_triton(x) and 0 < x.shape[1] <= _ROW_LIMIT and x.shape[0] > 0


def _launch(x: Product, residual: Tensor | None, weight: Tensor, eps: float, out: Tensor, scale: Tensor | None) -> None:
    if residual is None and not x.is_scaled:
        raise ValueError("add_rms_norm: a product that owes its scales needs a residual to be added to")
    rows, size = x.data.shape
    _add_rms_norm_kernel[(rows,)](
        *x, residual, weight, out, scale, x.data.stride(0), 0 if residual is None else residual.stride(0), size, eps,
        HAS_SCALES=not x.is_scaled, HAS_RESIDUAL=residual is not None, QUANTIZE=scale is not None,
        BLOCK=triton.next_power_of_2(size),
        **launch_options(x.data, num_warps=row_warps(size)),
    )  # fmt: skip


@jit
def _add_rms_norm_kernel(
    x_ptr, x_row_scale_ptr, x_column_scale_ptr, residual_ptr, weight_ptr, out_ptr, scale_ptr, x_stride,
    residual_stride, size, eps, HAS_SCALES: tl.constexpr, HAS_RESIDUAL: tl.constexpr, QUANTIZE: tl.constexpr,
    BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < size
    let_next_start(PDL)
    weight = tl.load(weight_ptr + at, mask=inside, other=0.0).to(tl.float32)
    if HAS_SCALES:
        x_scale = tl.load(x_column_scale_ptr + at, mask=inside, other=0.0)
    wait_for_previous(PDL)
    x = tl.load(x_ptr + row * x_stride + at, mask=inside, other=0.0).to(tl.float32)
    if HAS_SCALES:
        x *= x_scale * tl.load(x_row_scale_ptr + row)
    if HAS_RESIDUAL:
        residual_at = residual_ptr + row * residual_stride + at
        total = (tl.load(residual_at, mask=inside, other=0.0).to(tl.float32) + x).to(residual_ptr.dtype.element_ty)
        tl.store(residual_at, total, mask=inside)
        x = total.to(tl.float32)
    normed = x * tl.rsqrt(tl.sum(x * x, 0) / size + eps) * weight
    if QUANTIZE:
        data, scale = quantize_block(normed, 1e-12, 448.0)
        tl.store(out_ptr + row * size + at, data, mask=inside)
        tl.store(scale_ptr + row, scale)
    else:
        tl.store(out_ptr + row * size + at, normed.to(out_ptr.dtype.element_ty), mask=inside)
