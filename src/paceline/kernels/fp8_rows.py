"""The FP8 product of up to 192 rows on Hopper: `cuda/fp8_rows.cu`, its plan and its launch.

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

MAX_ROWS = 192  # a step of 256 is 1 % faster with cuBLASLt and the scales left to its readers
_GROUP_ROWS = 64  # that a warpgroup multiplies
_SHARED_BYTES = 200 * 1024  # of 227 KiB: small kernels find room beside it
# By how many rows of x there are: up to 16, then 1 to 3 warpgroups.
_LARGEST_TILE = (80, 128, 256, 192)  # rows of w: what registers hold, or what measured best
_STAGE_BYTES = (48 * 1024, 32 * 1024, 0, 0)  # 0: stages of one piece
_IN_FLIGHT_BYTES = 64 * 1024
_ATOM = 128
_MAX_STAGES = 64
_FETCHING_THREADS = {True: 64, False: 128}  # a warp fetches w, a warp fetches x; one warpgroup alone: True
_TALL_SHARE = 72  # rows of w a multiprocessor below which cuBLASLt is faster once there are more than 64 rows of x


class Plan(NamedTuple):
    tile: int  # rows of w a tile
    atoms: int  # 128-byte pieces of k a stage
    programs: int
    groups: int = 1  # warpgroups, 64 rows of x each
    cluster: int = 1  # programs that fetch x together

    def box_rows(self, rows: int) -> int:
        """Rows of x that are fetched: whole eights from each program of a cluster."""
        unit = 8 * self.cluster
        return -(-rows // unit) * unit


def fits(x: Tensor, weight: Tensor, out_dtype: torch.dtype = torch.bfloat16) -> bool:
    """Whether this kernel can do x [M, K] by weight [N, K]."""
    rows, inputs = x.shape
    return (
        x.is_cuda
        and out_dtype in (torch.bfloat16, torch.float32)
        and runs_cuda_programs(x.device.index or 0)
        and _has_room(rows, weight.shape[0], out_dtype, x.device.index or 0)
        and inputs % _ATOM == 0
        and inputs >= 4 * _ATOM
        and weight.shape[0] % 8 == 0
        and x.stride(1) == weight.stride(1) == 1
        and x.stride(0) % 16 == weight.stride(0) % 16 == x.data_ptr() % 16 == weight.data_ptr() % 16 == 0
    )


def _has_room(rows: int, outputs: int, out_dtype: torch.dtype, device_index: int) -> bool:
    if rows <= _GROUP_ROWS:
        return rows > 0
    wide = outputs >= _TALL_SHARE * multiprocessors(device_index)
    return rows <= MAX_ROWS and wide and out_dtype == torch.bfloat16


@lru_cache(maxsize=4096)
def plan(outputs: int, inputs: int, rows: int = 8, most_programs: int = 132) -> Plan:
    """Even shares: the largest tile for which the program with most work has (nearly) the least.

    `most_programs`: the card's multiprocessors, 132 on an H100 or H200.
    Up to 16 rows tiles are smaller and stages longer in k, since fetching x again for each tile costs little then.
    Above 64 rows two programs fetch x together. All by measurement on one H200: docs/performance.md.
    """
    kind = 0 if rows <= 16 else -(-rows // _GROUP_ROWS)
    groups = max(1, kind)
    cluster = 2 if groups > 1 and most_programs % 2 == 0 else 1
    tiles = range(8, _LARGEST_TILE[kind] + 1, 8)
    least = min(_share(outputs, tile, most_programs) for tile in tiles)
    tile = max(tile for tile in tiles if _share(outputs, tile, most_programs) <= 1.02 * least)
    box_rows = Plan(tile, 1, 1, groups, cluster).box_rows(rows)
    atoms = 4
    while atoms > 1 and ((tile + box_rows) * _ATOM * atoms > _STAGE_BYTES[kind] or inputs % (atoms * _ATOM)):
        atoms //= 2
    count = _padded(-(-outputs // tile), cluster)
    turns = -(-count // most_programs)
    return Plan(tile, atoms, _padded(-(-count // turns), cluster), groups, cluster)


def _padded(count: int, cluster: int) -> int:
    return -(-count // cluster) * cluster


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
    how = plan(outputs, inputs, rows, multiprocessors(weight.device.index or 0))
    box_rows = how.box_rows(rows)
    out = torch.empty(rows, outputs, dtype=out_dtype, device=weight.device)
    stage = (how.tile + box_rows) * _ATOM * how.atoms
    pitch = how.tile if how.tile % 16 == 8 else how.tile + 8
    fixed = 1024 + 4 * how.tile + (4 * rows * pitch if how.groups == 1 else 0)
    stages = min(_MAX_STAGES, (_SHARED_BYTES - fixed) // (stage + 32))
    tiles, steps = _padded(-(-outputs // how.tile), how.cluster), inputs // (how.atoms * _ATOM)
    u32, pointer = ctypes.c_uint32, ctypes.c_void_p
    _program(how._replace(programs=0), out_dtype == torch.float32).launch(
        how.programs,
        128 * how.groups + _FETCHING_THREADS[how.groups == 1],
        _SHARED_BYTES,
        [
            _tensor_map(x.data, box_rows // how.cluster, how.atoms if how.cluster == 1 else 1),
            _weight_map(weight, how.tile, how.atoms),
            pointer(x.scale.data_ptr()),
            pointer(weight_scale.data_ptr()),
            pointer(None if bias is None else bias.data_ptr()),
            pointer(out.data_ptr()),
            u32(rows), u32(box_rows), u32(outputs), u32(tiles), u32(steps), u32(stages),
            u32(min(stages, max(2, _IN_FLIGHT_BYTES // (how.tile * _ATOM * how.atoms)))),
        ],
        cluster=how.cluster,
    )  # fmt: skip
    return out


@cache
def _program(how: Plan, float_out: bool) -> CudaProgram:
    registers = how.tile // 2
    names = [f"%{i}" for i in range(registers)]
    macros = {
        "TILE": str(how.tile),
        "ATOMS": str(how.atoms),
        "WARPGROUPS": str(how.groups),
        "CLUSTER": str(how.cluster),
        "FLOAT_OUT": str(int(float_out)),
        # The text of one wgmma: it names every accumulator, so it depends on TILE.
        "WGMMA_N": f'"{how.tile}"',
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
