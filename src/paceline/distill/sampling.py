"""Drawing a token from every row of logits, by the Gumbel trick, with counters for random numbers.

argmax(logits / T + gumbel noise) is a draw from softmax(logits / T). The noise of a token is a hash of
(seed, row, position, token): no generator state, so a captured graph needs none. `reference` says it in
torch; the kernel does it in one pass over the logits (compiled by torch's own compiler for a CPU, the
reference gave wrong scores in torch 2.13, so it is not compiled at all).
"""

# mypy: disable-error-code="import-not-found,import-untyped,no-untyped-def,untyped-decorator"

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU build of torch comes without Triton
    triton = None


def mix_bits(x: Tensor) -> Tensor:
    """A 32-bit integer hash (lowbias32 by C. Wellons) on int32, wrapping."""
    x = (x ^ ((x >> 16) & 0xFFFF)) * 0x7FEB352D
    x = (x ^ ((x >> 15) & 0x1FFFF)) * (0x846CA68B - 2**32)
    return x ^ ((x >> 16) & 0xFFFF)


def row_keys(rows: int, seed: Tensor, position: Tensor) -> Tensor:
    """One int32 key a row; seed and position [1] int64, below 2**31."""
    numbers = torch.arange(1, rows + 1, device=seed.device, dtype=torch.int32)
    return mix_bits(mix_bits(mix_bits(numbers) ^ seed.to(torch.int32)) + position.to(torch.int32))


def reference(logits: Tensor, temperature: Tensor, keys: Tensor) -> Tensor:
    """logits [B, V] fp32, temperature [B] (0: argmax), keys [B] int32 -> token ids [B] int64."""
    columns = torch.arange(logits.shape[1], device=logits.device, dtype=torch.int32)
    bits = mix_bits(keys.unsqueeze(1) ^ (columns * (0x9E3779B1 - 2**32)).unsqueeze(0))
    uniform = (((bits >> 8) & 0xFFFFFF).float() + 0.5) * 2**-24
    gumbel = -torch.log(-torch.log(uniform))
    warm = temperature.unsqueeze(1) > 0
    divisor = torch.where(warm, temperature.unsqueeze(1), 1.0)
    return (logits / divisor + torch.where(warm, gumbel, 0.0)).argmax(dim=-1)


def draw(logits: Tensor, temperature: Tensor, keys: Tensor) -> Tensor:
    """As `reference`, by the kernel; logits contiguous."""
    out = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
    _kernel[(logits.shape[0],)](logits, temperature, keys, out, logits.shape[1], BLOCK=4096, num_warps=8)
    return out


if triton is not None:

    @triton.jit
    def _mix(x):
        x = (x ^ (x >> 16)) * 0x7FEB352D
        x = (x ^ (x >> 15)) * 0x846CA68B
        return x ^ (x >> 16)

    @triton.jit
    def _kernel(logits, temperatures, keys, out, vocab, BLOCK: tl.constexpr) -> None:
        row = tl.program_id(0)
        temperature = tl.load(temperatures + row)
        key = tl.load(keys + row).to(tl.uint32, bitcast=True)
        warm = temperature > 0
        divisor = tl.where(warm, temperature, 1.0)
        best = tl.full([], float("-inf"), tl.float32)
        choice = tl.full([], 0, tl.int32)
        for start in range(0, vocab, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            scores = tl.load(logits + row.to(tl.int64) * vocab + columns, mask=columns < vocab, other=float("-inf"))
            bits = _mix(key ^ (columns.to(tl.uint32) * 0x9E3779B1))
            uniform = ((bits >> 8).to(tl.int32).to(tl.float32) + 0.5) * 5.9604644775390625e-08
            gumbel = -tl.log(-tl.log(uniform))
            scores = scores / divisor + tl.where(warm, gumbel, 0.0)
            top, where = tl.max(scores, axis=0, return_indices=True)
            choice = tl.where(top > best, start + where, choice)
            best = tl.maximum(best, top)
        tl.store(out + row, choice.to(tl.int64))


def best_for(device: torch.device) -> Any:
    """The kernel on a GPU with Triton, the reference elsewhere."""
    return draw if triton is not None and device.type == "cuda" else reference
