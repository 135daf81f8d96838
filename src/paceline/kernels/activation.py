"""silu(gate) · up of a fused gate_up projection, as such or quantised to FP8 for the product that follows."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from paceline.kernels.fp8 import QuantizedRows, empty_rows, quantize_block, quantize_rows_reference, row_warps
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


def silu_mul(gate_up: Tensor) -> Tensor:
    """gate_up [M, 2·I], gates first -> [M, I] in its dtype; the arithmetic in float32."""
    if not _fused(gate_up):
        return silu_mul_reference(gate_up)
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(rows, size, dtype=gate_up.dtype, device=gate_up.device)
    _launch(gate_up, out, None)
    return out


def silu_mul_quant(gate_up: Tensor) -> QuantizedRows:
    """gate_up [M, 2·I], gates first -> [M, I] in E4M3 with one scale a row."""
    if not _fused(gate_up):
        return silu_mul_quant_reference(gate_up)
    out = empty_rows(gate_up, gate_up.shape[1] // 2)
    _launch(gate_up, out.data, out.scale)
    return out


def silu_mul_reference(gate_up: Tensor) -> Tensor:
    return _silu_mul(gate_up).to(gate_up.dtype)


def silu_mul_quant_reference(gate_up: Tensor) -> QuantizedRows:
    return quantize_rows_reference(_silu_mul(gate_up))


def _silu_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.float().chunk(2, dim=1)
    return functional.silu(gate) * up


def _fused(gate_up: Tensor) -> bool:
    return runs_triton(gate_up) and 0 < gate_up.shape[1] // 2 <= _ROW_LIMIT and gate_up.shape[0] > 0


def _launch(gate_up: Tensor, out: Tensor, scale: Tensor | None) -> None:
    rows, size = out.shape
    _silu_mul_kernel[(rows,)](
        gate_up, out, scale, gate_up.stride(0), size,
        QUANTIZE=scale is not None, BLOCK=triton.next_power_of_2(size),
        **launch_options(gate_up, num_warps=row_warps(size)),
    )  # fmt: skip


@jit
def _silu_mul_kernel(
    gate_up_ptr, out_ptr, scale_ptr, stride, size, QUANTIZE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < size
    let_next_start(PDL)
    wait_for_previous(PDL)
    gate_at = gate_up_ptr + row * stride + at
    gate = tl.load(gate_at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_at + size, mask=inside, other=0.0).to(tl.float32)
    value = gate / (1.0 + tl.exp(-gate)) * up
    if QUANTIZE:
        data, scale = quantize_block(value, 1e-12, 448.0)
        tl.store(out_ptr + row * size + at, data, mask=inside)
        tl.store(scale_ptr + row, scale)
    else:
        tl.store(out_ptr + row * size + at, value.to(out_ptr.dtype.element_ty), mask=inside)
