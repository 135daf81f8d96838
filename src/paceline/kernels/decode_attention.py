"""A layer's attention in decoding and verification in one launch, on Hopper: `cuda/decode_attention.cu`.

It takes the fused projection as the product left it: rotation, storing the new keys and values, attention and putting
splits together are one kernel, which fills its rings from the cache before the projection is done. Beside it the
quantisation of its result, which finds each token's largest magnitude already known.

Where it is faster (`is_faster`) the model calls it. The general ways are `rotary_kv.py` and
`paged_attention.py`; what they promise holds here too, for what `fits`.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from paceline.kernels.cuda_program import CudaProgram, runs_cuda_programs
from paceline.kernels.fp8 import FP8, FP8_MAX, SMALLEST_AMAX, QuantizedRows
from paceline.kernels.triton_support import (
    jit,
    launch_options,
    let_next_start,
    tl,
    triton,
    wait_for_previous,
)

BLOCK_SIZE = 16
_MAX_QUERIES = 64  # of all heads that share a key-value head
_KEYS_OF_A_SPLIT = 256  # at least
_MAX_SPLITS = 16
_MULTIPROCESSORS = 132
_LOG2_E = 1.4426950408889634
_NUM_COUNTERS = 1 << 16


def fits(qkv: Tensor, kv_layer: Tensor, num_heads: int, num_kv_heads: int, query_len: int) -> bool:
    """Whether the kernel can do rows of `query_len` queries. No window, norm of heads or cache scale."""
    group, head_dim = num_heads // num_kv_heads, kv_layer.shape[-1]
    return (
        qkv.is_cuda
        and runs_cuda_programs(qkv.device.index or 0)
        and qkv.dtype == kv_layer.dtype == torch.bfloat16
        and head_dim in (64, 128)
        and kv_layer.shape[1] == BLOCK_SIZE
        and kv_layer.is_contiguous()
        and group * query_len <= _MAX_QUERIES
        and qkv.stride(1) == 1
        and qkv.stride(0) % 8 == 0
        and qkv.data_ptr() % 16 == 0
    )


def is_faster(num_rows: int, num_kv_heads: int, head_dim: int, queries: int) -> bool:
    """Than the general kernels, with `queries` of all heads that share a key-value head; by measurement on one H200.

    One row of many queries wants more splits than putting them together in the same kernel is worth, and from some
    512 programs on the copies of the general kernel are as fast.
    """
    programs = num_rows * num_kv_heads
    if head_dim <= 64:
        return queries <= 16
    return programs <= 512 if queries <= 16 else 32 <= programs <= 256


def decode_attention(
    qkv: Tensor, rotary_table: Tensor, positions: Tensor, slots: Tensor, kv_layer: Tensor, block_tables: Tensor,
    kv_lens: Tensor, num_heads: int, query_len: int, *, max_kv_len: int | None = None, num_splits: int | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Rows of `query_len` queries, where `fits`. Writes the chunk's keys and values into `kv_layer`.

    qkv               [R * Q, (H + 2 * KV) * D] bfloat16; not changed
    rotary_table      [P, 2, D] bfloat16 or float32; positions, slots [R * Q] int64
    kv_layer          [blocks, 16, 2, KV, D] bfloat16; block_tables [R, W] int32; kv_lens [R] int32
    max_kv_len        a bound of kv_lens known on the host; it only chooses the splits

    Returns [R * Q, H * D] bfloat16 and the largest magnitude of each token in each key-value head's group [R * Q, KV]
    float32, NaN where a value is.
    """
    num_tokens, num_rows = qkv.shape[0], kv_lens.shape[0]
    num_kv_heads, head_dim = kv_layer.shape[3:]
    if num_tokens != num_rows * query_len:
        raise ValueError(f"{num_tokens} tokens are not {num_rows} rows of {query_len} queries.")
    longest = max_kv_len or block_tables.shape[1] * BLOCK_SIZE
    splits = num_splits or num_splits_for(num_rows, num_kv_heads, longest)
    device = qkv.device
    out = torch.empty((num_tokens, num_heads * head_dim), dtype=qkv.dtype, device=device)
    amax = torch.empty((num_tokens, num_kv_heads), dtype=torch.float32, device=device)
    parts = num_tokens * num_heads * splits if splits > 1 else 1
    partial = torch.empty((parts, head_dim), dtype=torch.float32, device=device)
    peaks, totals = torch.empty((2, parts), dtype=torch.float32, device=device)
    u32, u64, pointer = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p
    group = num_heads // num_kv_heads
    form = form_for(num_rows * splits * num_kv_heads, group * query_len)
    tensors = (
        qkv, rotary_table, positions.contiguous(), slots.contiguous(), kv_layer, block_tables, kv_lens.contiguous(),
        out, amax, partial, peaks, totals, _counters(device, num_rows * num_kv_heads),
    )  # fmt: skip
    _program(head_dim, group, query_len, form, rotary_table.dtype == torch.float32).launch(
        num_rows * splits * num_kv_heads,
        32 * form.warps,
        shared_bytes(head_dim, group * query_len, form),
        [
            *(pointer(tensor.data_ptr()) for tensor in tensors),
            u64(qkv.stride(0)), u64(block_tables.stride(0)), u64(kv_layer.stride(0)), u64(kv_layer.stride(1)),
            u64(kv_layer.stride(2)), u32(num_kv_heads), u32(splits), ctypes.c_float(head_dim**-0.5 * _LOG2_E),
        ],
    )  # fmt: skip
    return out, amax


class Form(NamedTuple):
    """Of a program."""

    warps: int
    stages: int = 3  # of 16 keys, in the ring of each stream of warps

    def stream_warps(self, queries: int) -> int:
        """That share a ring: each has a tile of 16 queries."""
        tiles = -(-queries // 16)
        return 1 if tiles == 1 else 2 if tiles == 2 else 4


def form_for(num_programs: int, queries: int) -> Form:
    """Eight warps where a program has a multiprocessor to itself or many queries; by measurement on one H200."""
    return Form(8) if queries > 16 or num_programs <= _MULTIPROCESSORS else Form(4)


def num_splits_for(num_rows: int, num_kv_heads: int, max_kv_len: int) -> int:
    """Splits of the keys: two programs a multiprocessor at most, and none of few keys."""
    wanted = 2 * _MULTIPROCESSORS // (num_rows * num_kv_heads)
    return max(1, min(wanted, _MAX_SPLITS, max_kv_len // _KEYS_OF_A_SPLIT))


def shared_bytes(head_dim: int, queries: int, form: Form) -> int:
    """Of a program: its queries, the chunk's own block, and the rings, in whose place sums meet at the end."""
    stream_warps = form.stream_warps(queries)
    streams, rows = form.warps // stream_warps, 16 * stream_warps
    block = 2 * BLOCK_SIZE * 2 * head_dim
    return 2 * rows * head_dim + block + max(streams * form.stages * block, streams * rows * 4 * (head_dim + 2))


def quantize_tokens(x: Tensor, amax: Tensor) -> QuantizedRows:
    """x [T, N] bfloat16 and the largest magnitudes of its parts [T, P] -> E4M3 with one scale a token."""
    num_tokens, size = x.shape
    data = torch.empty((num_tokens, size), dtype=FP8, device=x.device)
    scale = torch.empty(num_tokens, dtype=torch.float32, device=x.device)
    parts = amax.shape[1]
    chunk = min(2048, triton.next_power_of_2(size))
    _quantize_kernel[(num_tokens, triton.cdiv(size, chunk))](
        x, amax, data, scale, size, parts, SMALLEST=SMALLEST_AMAX, MAX=FP8_MAX, CHUNK=chunk,
        BLOCK_P=triton.next_power_of_2(parts), **launch_options(x, num_warps=4),
    )  # fmt: skip
    return QuantizedRows(data, scale)


@jit
def _quantize_kernel(
    x, amax, data, scales, size, parts, SMALLEST: tl.constexpr, MAX: tl.constexpr, CHUNK: tl.constexpr,
    BLOCK_P: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    token, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    part, at = tl.arange(0, BLOCK_P), chunk * CHUNK + tl.arange(0, CHUNK)
    let_next_start(PDL)
    wait_for_previous(PDL)
    # As integers magnitudes have the same order, with NaN on top, which a float maximum would drop.
    bits = tl.load(amax + token * parts + part, mask=part < parts, other=0.0).to(tl.int32, bitcast=True)
    top = tl.max(bits, 0).to(tl.float32, bitcast=True)
    top = tl.where(top < SMALLEST, SMALLEST, top) + top * 0.0
    values = tl.load(x + token * size + at, mask=at < size, other=0.0).to(tl.float32)
    tl.store(data + token * size + at, (values * (tl.div_rn(1.0, top) * MAX)).to(tl.float8e4nv), mask=at < size)
    if chunk == 0:
        tl.store(scales + token, top * (1.0 / MAX))


@cache
def _program(head_dim: int, group: int, query_len: int, form: Form, rotary_float: bool) -> CudaProgram:
    macros = {
        "D": str(head_dim),
        "GROUP": str(group),
        "Q": str(query_len),
        "ROTARY_FLOAT": str(int(rotary_float)),
        "WARPS": str(form.warps),
        "STAGES": str(form.stages),
        "STREAM_WARPS": str(form.stream_warps(group * query_len)),
    }
    return CudaProgram("decode_attention.cu", "decode_attention", macros)


_counter_blocks: dict[torch.device, Tensor] = {}


def _counters(device: torch.device, count: int) -> Tensor:
    """Zeros; the kernel leaves zeros behind."""
    found = _counter_blocks.get(device)
    if found is None or found.numel() < count:
        found = torch.zeros(max(count, _NUM_COUNTERS), dtype=torch.int32, device=device)
        # What is allocated while a graph is captured belongs to that graph and must not be kept.
        if not torch.cuda.is_current_stream_capturing():
            _counter_blocks[device] = found
    return found
