"""FP8 (E4M3) values with float32 scales: one scale a row of activations, one an output channel of weights.

Contract
- value = data · scale, scale = amax / 448 of its row; 448 is the largest E4M3 number.
- A row with NaN or infinity gets the scale NaN, so whatever is computed from it is NaN (p31).
- A row of zeros gets a tiny scale instead of 0, so that dividing by it is safe.
"""

from __future__ import annotations

from typing import NamedTuple

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
SMALLEST_AMAX = 1e-12
_ROW_LIMIT = 32768  # elements that one program keeps in registers
_WEIGHT_CHUNK = 1 << 24  # elements of a weight that are in float32 at a time: 64 MiB


class QuantizedRows(NamedTuple):
    data: Tensor  # [M, K] float8_e4m3fn
    scale: Tensor  # [M] float32


def quantize_rows(x: Tensor) -> QuantizedRows:
    """x [M, K] bfloat16 | float32, rows contiguous -> E4M3 with one scale a row."""
    if not runs_triton(x) or x.shape[1] > _ROW_LIMIT or x.shape[0] == 0:
        return quantize_rows_reference(x)
    rows, size = x.shape
    out = empty_rows(x, size)
    _quantize_rows_kernel[(rows,)](
        x, out.data, out.scale, x.stride(0), size,
        BLOCK=triton.next_power_of_2(size), **launch_options(x, num_warps=row_warps(size)),
    )  # fmt: skip
    return out


def quantize_rows_reference(x: Tensor) -> QuantizedRows:
    values = x.float()
    amax = _amax(values)
    return QuantizedRows((values * (amax.reciprocal() * FP8_MAX).unsqueeze(1)).to(FP8), amax * (1.0 / FP8_MAX))


def quantize_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight [N, K] -> E4M3 [N, K] and scales [N] float32; a few rows at a time, so temporaries stay small."""
    outputs, inputs = weight.shape
    data = torch.empty(outputs, inputs, dtype=FP8, device=weight.device)
    scale = torch.empty(outputs, dtype=torch.float32, device=weight.device)
    chunk = max(1, _WEIGHT_CHUNK // inputs)
    for start in range(0, outputs, chunk):
        part = quantize_rows_reference(weight[start : start + chunk])
        data[start : start + chunk] = part.data
        scale[start : start + chunk] = part.scale
    return data, scale


def dequantize(rows: QuantizedRows, dtype: torch.dtype = torch.float32) -> Tensor:
    return (rows.data.float() * rows.scale.unsqueeze(1)).to(dtype)


def empty_rows(like: Tensor, size: int) -> QuantizedRows:
    """Room for as many rows of `size` as `like` has."""
    rows = like.shape[0]
    return QuantizedRows(
        torch.empty(rows, size, dtype=FP8, device=like.device),
        torch.empty(rows, dtype=torch.float32, device=like.device),
    )


def row_warps(size: int) -> int:
    """Warps of a program that holds a row of `size` in registers: about 16 elements a thread, 4 to 32 warps."""
    return min(32, max(4, int(triton.next_power_of_2(size)) // 512))


def _amax(values: Tensor) -> Tensor:
    """[M, K] float32 -> [M]: the largest magnitude, at least tiny; NaN where the row has NaN or infinity."""
    amax = values.abs().amax(dim=1)
    return torch.where(amax < SMALLEST_AMAX, SMALLEST_AMAX, amax) + amax * 0.0


@jit
def quantize_block(values, SMALLEST: tl.constexpr, MAX: tl.constexpr):
    """A row in float32 (zeros where masked) -> its E4M3 data and its scale. NaN or infinity: scale NaN."""
    # tl.max drops NaN; as integers the magnitudes have the same order, with infinity and NaN on top.
    amax = tl.max(tl.abs(values).to(tl.int32, bitcast=True), 0).to(tl.float32, bitcast=True)
    amax = tl.where(amax < SMALLEST, SMALLEST, amax) + amax * 0.0
    data = (values * (tl.div_rn(1.0, amax) * MAX)).to(tl.float8e4nv)
    return data, amax * (1.0 / MAX)


@jit
def _quantize_rows_kernel(x_ptr, data_ptr, scale_ptr, stride, size, BLOCK: tl.constexpr, PDL: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    let_next_start(PDL)
    wait_for_previous(PDL)
    x = tl.load(x_ptr + row * stride + at, mask=at < size, other=0.0).to(tl.float32)
    data, scale = quantize_block(x, 1e-12, 448.0)
    tl.store(data_ptr + row * size + at, data, mask=at < size)
    tl.store(scale_ptr + row, scale)
