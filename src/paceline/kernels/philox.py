"""u = f(seed, position, purpose) inside kernels: Philox4x32-10, the same bits as layers/random.py.

Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011. The key is the 64-bit seed, the counter is
(position, purpose, step), as there; two of the four words make a float64 in [0, 1) with 53 bits.
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

_MASK = 0xFFFFFFFF
_BLOCK = 256


@jit
def philox_uniform(seed, position, purpose, step=0):
    """seed, position: int64 of one shape; purpose and step: int32 or of that shape. float64 in [0, 1) of that shape."""
    c0 = position.to(tl.uint32)
    c1 = (position >> 32).to(tl.uint32)
    c2 = tl.zeros_like(c0) + tl.cast(purpose, tl.uint32)
    c3 = tl.zeros_like(c0) + tl.cast(step, tl.uint32)
    k0 = seed.to(tl.uint32)
    k1 = (seed >> 32).to(tl.uint32)
    a = tl.zeros_like(c0) + tl.full([], 0xD2511F53, tl.uint32)
    b = tl.zeros_like(c0) + tl.full([], 0xCD9E8D57, tl.uint32)
    for _ in tl.static_range(10):
        low0, high0 = c0 * a, tl.umulhi(c0, a)
        low1, high1 = c2 * b, tl.umulhi(c2, b)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0 += tl.full([], 0x9E3779B9, tl.uint32)
        k1 += tl.full([], 0xBB67AE85, tl.uint32)
    high = (c0 >> 5).to(tl.float64)
    low = (c1 >> 6).to(tl.float64)
    return (high * 67108864.0 + low) * (1.0 / 9007199254740992.0)


@jit
def _uniforms_kernel(seeds, positions, steps, out, count, purpose, BLOCK: tl.constexpr, PDL: tl.constexpr):
    wait_for_previous(PDL)
    let_next_start(PDL)
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < count
    seed = tl.load(seeds + index, mask=mask, other=0)
    position = tl.load(positions + index, mask=mask, other=0).to(tl.int64)
    step = tl.load(steps + index, mask=mask, other=0) if steps is not None else 0
    tl.store(out + index, philox_uniform(seed, position, purpose, step), mask=mask)


def uniforms(seeds: Tensor, positions: Tensor, purpose: int, steps: Tensor | None = None) -> Tensor:
    """One number a row: seeds [N] int64 (two's complement), positions [N] and steps [N] (None: 0)
    int32 or int64 -> float64 [N] in [0, 1)."""
    if not runs_triton(seeds):
        return uniforms_reference(seeds, positions, purpose, steps)
    seeds, positions = seeds.contiguous(), positions.contiguous()
    count = seeds.numel()
    steps = None if steps is None else steps.contiguous()
    out = torch.empty(count, dtype=torch.float64, device=seeds.device)
    grid = (triton.cdiv(count, _BLOCK),)
    _uniforms_kernel[grid](seeds, positions, steps, out, count, purpose, BLOCK=_BLOCK, **launch_options(seeds))
    return out


def uniforms_reference(seeds: Tensor, positions: Tensor, purpose: int, steps: Tensor | None = None) -> Tensor:
    positions = positions.to(torch.int64)
    c0, c1 = positions & _MASK, (positions >> 32) & _MASK
    c2, c3 = torch.full_like(c0, purpose), torch.zeros_like(c0) if steps is None else steps.to(torch.int64)
    k0, k1 = seeds & _MASK, (seeds >> 32) & _MASK
    for _ in range(10):
        product0, product1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57  # int64 wraps; both words survive the wrap
        high0, high1 = (product0 >> 32) & _MASK, (product1 >> 32) & _MASK
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, product1 & _MASK, high0 ^ c3 ^ k1, product0 & _MASK
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return ((c0 >> 5).to(torch.float64) * 67108864.0 + (c1 >> 6)) * (1.0 / 9007199254740992.0)
