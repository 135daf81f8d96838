"""The FP8 product of up to 64 rows on Hopper: `cuda/fp8_rows.cu`, its plan and its launch.

The kernel's file says how it works. Here: how a weight is cut (`plan`), and tensor maps, which describe a matrix to the
card's copy engine and are made once for a weight.
"""

from __future__ import annotations

import ctypes
from functools import cache, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from paceline.kernels.cuda_program import CudaProgram, checked, driver, multiprocessors, runs_cuda_programs
from paceline.kernels.fp8 import QuantizedRows

MAX_ROWS = 64
_SHARED_BYTES = 200 * 1024  # of 227 KiB: small kernels find room beside it
_LARGEST_TILE = {True: 80, False: 128}  # rows of w; up to 16 rows of x: True
_STAGE_BYTES = {True: 48 * 1024, False: 32 * 1024}
_IN_FLIGHT_BYTES = 64 * 1024
_ATOM = 128
_MAX_STAGES = 64
_THREADS = 192  # a warpgroup multiplies, a warp fetches w, a warp fetches x


class Plan(NamedTuple):
    tile: int  # rows of w a tile
    atoms: int  # 128-byte pieces of k a stage
    programs: int


def fits(x: Tensor, weight: Tensor, out_dtype: torch.dtype = torch.bfloat16) -> bool:
    """Whether this kernel can do x [M, K] by weight [N, K]."""
    rows, inputs = x.shape
    return (
        x.is_cuda
        and out_dtype in (torch.bfloat16, torch.float32)
        and runs_cuda_programs(x.device.index or 0)
        and 0 < rows <= MAX_ROWS
        and inputs % _ATOM == 0
        and inputs >= 4 * _ATOM
        and weight.shape[0] % 8 == 0
        and x.stride(1) == weight.stride(1) == 1
        and x.stride(0) % 16 == weight.stride(0) % 16 == x.data_ptr() % 16 == weight.data_ptr() % 16 == 0
    )


@lru_cache(maxsize=256)
def plan(outputs: int, inputs: int, box_rows: int = 8, most_programs: int = 132) -> Plan:
    """Even shares: the largest tile for which the program with most work has (nearly) the least.

    `most_programs`: the card's multiprocessors, 132 on an H100 or H200.
    Up to 16 rows tiles are smaller and stages longer in k, since fetching x again for each tile costs little then.
    Both by measurement on one H200: docs/performance.md.
    """
    few = box_rows <= 16
    tiles = range(8, _LARGEST_TILE[few] + 1, 8)
    least = min(_share(outputs, tile, most_programs) for tile in tiles)
    tile = max(tile for tile in tiles if _share(outputs, tile, most_programs) <= 1.02 * least)
    atoms = 4
    while atoms > 1 and ((tile + box_rows) * _ATOM * atoms > _STAGE_BYTES[few] or inputs % (atoms * _ATOM)):
        atoms //= 2
    count = -(-outputs // tile)
    turns = -(-count // most_programs)
    return Plan(tile, atoms, -(-count // turns))


def _share(outputs: int, tile: int, programs: int) -> int:
    """Rows of w that the program with most of them reads."""
    count = -(-outputs // tile)
    return -(-count // programs) * tile


def fp8_rows(
    x: QuantizedRows, weight: Tensor, weight_scale: Tensor, bias: Tensor | None, out_dtype: torch.dtype
) -> Tensor:
    """[M, K] by [N, K] -> [M, N] in bfloat16 or float32, where `fits`."""
    rows, inputs = x.data.shape
    bias = None if bias is None else bias.float()
    outputs = weight.shape[0]
    box_rows = -(-rows // 8) * 8
    how = plan(outputs, inputs, box_rows, multiprocessors(weight.device.index or 0))
    out = torch.empty(rows, outputs, dtype=out_dtype, device=weight.device)
    stage = (how.tile + box_rows) * _ATOM * how.atoms
    pitch = how.tile if how.tile % 16 == 8 else how.tile + 8
    fixed = 1024 + 4 * (rows * pitch + how.tile + rows)
    stages = min(_MAX_STAGES, (_SHARED_BYTES - fixed) // (stage + 24))
    tiles, steps = -(-outputs // how.tile), inputs // (how.atoms * _ATOM)
    u32, pointer = ctypes.c_uint32, ctypes.c_void_p
    _program(how.tile, how.atoms, out_dtype == torch.float32).launch(
        how.programs,
        _THREADS,
        _SHARED_BYTES,
        [
            _tensor_map(x.data, box_rows, how.atoms),
            _weight_map(weight, how.tile, how.atoms),
            pointer(x.scale.data_ptr()),
            pointer(weight_scale.data_ptr()),
            pointer(None if bias is None else bias.data_ptr()),
            pointer(out.data_ptr()),
            u32(rows), u32(box_rows), u32(outputs), u32(tiles), u32(steps), u32(stages),
            u32(min(stages, max(2, _IN_FLIGHT_BYTES // (how.tile * _ATOM * how.atoms)))),
        ],
    )  # fmt: skip
    return out


@cache
def _program(tile: int, atoms: int, float_out: bool) -> CudaProgram:
    registers = tile // 2
    names = [f"%{i}" for i in range(registers)]
    macros = {
        "TILE": str(tile),
        "ATOMS": str(atoms),
        "FLOAT_OUT": str(int(float_out)),
        # The text of one wgmma: it names every accumulator, so it depends on TILE.
        "WGMMA_N": f'"{tile}"',
        "WGMMA_D": f'"{", ".join(names)}"',
        "WGMMA_A": f'"{registers}"',
        "WGMMA_B": f'"{registers + 1}"',
        "WGMMA_ACCUMULATE": f'"{registers + 2}"',
        "WGMMA_OUTPUTS": ", ".join(f'"+f"(d[{i}])' for i in range(registers)),
    }
    return CudaProgram("fp8_rows.cu", "fp8_rows", macros)


def _weight_map(weight: Tensor, tile: int, atoms: int) -> bytes:
    outputs, inputs = weight.shape
    return _kept_map(weight.data_ptr(), outputs, inputs, weight.stride(0), tile, atoms)


def _tensor_map(matrix: Tensor, box_rows: int, atoms: int) -> bytes:
    rows, inputs = matrix.shape
    return _make_map(matrix.data_ptr(), rows, inputs, matrix.stride(0), box_rows, atoms)


@lru_cache(maxsize=16384)
def _make_map(address: int, rows: int, inputs: int, stride: int, box_rows: int, atoms: int) -> bytes:
    """A matrix [rows, inputs] of bytes as [piece of k, row, 128], fetched in boxes of [atoms, box_rows, 128]."""
    wide, narrow = driver.cuuint64_t, driver.cuuint32_t
    tensor_map = checked(
        driver.cuTensorMapEncodeTiled(
            driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_UINT8,
            3,
            address,
            [wide(_ATOM), wide(rows), wide(inputs // _ATOM)],
            [wide(stride), wide(_ATOM)],
            [narrow(_ATOM), narrow(box_rows), narrow(atoms)],
            [narrow(1)] * 3,
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    )
    return ctypes.string_at(int(tensor_map.getPtr()), 128)


@lru_cache(maxsize=16384)
def _kept_map(address: int, rows: int, inputs: int, stride: int, tile: int, atoms: int) -> bytes:
    # The kernel reads weights before it waits for earlier kernels: what fills them must have ended.
    if not torch.cuda.is_current_stream_capturing():
        torch.cuda.current_stream().synchronize()
    return _make_map(address, rows, inputs, stride, tile, atoms)
