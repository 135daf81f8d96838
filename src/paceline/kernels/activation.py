"""silu(gate) · up of a fused gate_up projection, as such or quantised to FP8 for the product that follows.

`gate_up` may be a product that still owes its scales (`Product`).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from paceline.kernels.fp8 import QuantizedRows, empty_rows, quantize_block, quantize_rows_reference, row_warps
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

_ROW_LIMIT = 32768  # elements that one program keeps in registers


def silu_mul(gate_up: Tensor | Product) -> Tensor:
    """gate_up [M, 2·I], gates first -> [M, I] in its dtype; the arithmetic in float32."""
    gate_up = as_product(gate_up)
    if not _fused(gate_up.data):
        return silu_mul_reference(gate_up)
    rows, size = gate_up.data.shape[0], gate_up.data.shape[1] // 2
    out = torch.empty(rows, size, dtype=gate_up.data.dtype, device=gate_up.data.device)
    _launch(gate_up, out, None)
    return out


def silu_mul_quant(gate_up: Tensor | Product) -> QuantizedRows:
    """gate_up [M, 2·I], gates first -> [M, I] in E4M3 with one scale a row."""
    gate_up = as_product(gate_up)
    if not _fused(gate_up.data):
        return silu_mul_quant_reference(gate_up)
    out = empty_rows(gate_up.data, gate_up.data.shape[1] // 2)
    _launch(gate_up, out.data, out.scale)
    return out


def silu_mul_reference(gate_up: Tensor | Product) -> Tensor:
    gate_up = as_product(gate_up)
    return _silu_mul(gate_up).to(gate_up.data.dtype)


def silu_mul_quant_reference(gate_up: Tensor | Product) -> QuantizedRows:
    return quantize_rows_reference(_silu_mul(gate_up))


def _silu_mul(gate_up: Tensor | Product) -> Tensor:
    gate, up = as_product(gate_up).value().chunk(2, dim=1)
    return functional.silu(gate) * up


def _fused(gate_up: Tensor) -> bool:
    return runs_triton(gate_up) and 0 < gate_up.shape[1] // 2 <= _ROW_LIMIT and gate_up.shape[0] > 0


def _launch(gate_up: Product, out: Tensor, scale: Tensor | None) -> None:
    rows, size = out.shape
    _silu_mul_kernel[(rows,)](
        *gate_up, out, scale, gate_up.data.stride(0), size,
        HAS_SCALES=not gate_up.is_scaled, QUANTIZE=scale is not None, BLOCK=triton.next_power_of_2(size),
        **launch_options(gate_up.data, num_warps=min(16, row_warps(size))),
    )  # fmt: skip


@jit
def _silu_mul_kernel(
    gate_up_ptr, row_scale_ptr, column_scale_ptr, out_ptr, scale_ptr, stride, size,
    HAS_SCALES: tl.constexpr, QUANTIZE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < size
    let_next_start(PDL)
    wait_for_previous(PDL)
    gate_at = gate_up_ptr + row * stride + at
    gate = tl.load(gate_at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_at + size, mask=inside, other=0.0).to(tl.float32)
    if HAS_SCALES:
        row_scale = tl.load(row_scale_ptr + row)
        gate *= row_scale * tl.load(column_scale_ptr + at, mask=inside, other=0.0)
        up *= row_scale * tl.load(column_scale_ptr + size + at, mask=inside, other=0.0)
    value = gate / (1.0 + tl.exp(-gate)) * up
    if QUANTIZE:
        data, scale = quantize_block(value, 1e-12, 448.0)
        tl.store(out_ptr + row * size + at, data, mask=inside)
        tl.store(scale_ptr + row, scale)
    else:
        tl.store(out_ptr + row * size + at, value.to(out_ptr.dtype.element_ty), mask=inside)
