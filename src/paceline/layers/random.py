"""Random numbers as a function, not a stream: u = f(seed, position, purpose).

Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), written with int64
tensors so that a CPU and a GPU give the same bits. The key is the request's 64-bit seed; the counter is
(position, purpose, step). Nothing depends on the batch, the rank or the padding around a row.

Why `step` is there. A draft that was discarded leaves positions that a later step drafts again. Token-wise
rejection never looks behind the first rejection: what was committed is independent of the numbers spent on
the discarded places, so a later step may spend the same numbers on those positions again, and `step` is 0.
Block verification decides with the whole block: how much is kept depends on the discarded drafts too. Given
what was committed their numbers are no longer uniform, and drawing with them again would bend the law. There
the position at which the step starts is part of the counter, and every step has numbers of its own.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

Word = Any  # an int, or an int64 tensor

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_FEW = 64  # numbers that Python's own integers make sooner (6 µs each) than 250 calls of torch (700 µs)


class Purpose(IntEnum):
    """What a number at a position is for: one number never serves two decisions."""

    DRAFT = 0  # drawing a draft token
    ACCEPT = 1  # the test u*q < p
    TARGET = 2  # drawing a recovered, bonus or plain token


def philox(counter: tuple[Word, Word, Word, Word], key: tuple[Word, Word]) -> tuple[Word, ...]:
    """Ten rounds over 32-bit words, as ints or held in int64 tensors of one shape; returns four words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        low0, high0 = _multiply(c0, _MULTIPLIERS[0])
        low1, high1 = _multiply(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def _multiply(a: Word, b: int) -> tuple[Word, Word]:
    """Low and high words of a 32 x 32 bit product. int64 wraps, and both words survive the wrap."""
    product = a * b
    return product & _MASK, (product >> 32) & _MASK


def uniforms(seeds: Tensor, positions: Tensor, purpose: Purpose, steps: Tensor | None = None) -> Tensor:
    """Uniform numbers in [0, 1) with 53 bits, float64.

    seeds: int64, the 64-bit seed as two's complement; positions: int64 >= 0; steps: int64 in 0 .. 2**32 - 1, None
    means 0; the shapes broadcast.
    """
    if steps is None:
        steps = torch.zeros_like(positions)
    seeds, positions, steps = torch.broadcast_tensors(seeds, positions, steps)  # type: ignore[no-untyped-call]
    if seeds.device.type == "cpu" and seeds.numel() <= _FEW:
        each = zip(*(words.flatten().tolist() for words in (seeds, positions, steps)), strict=True)
        numbers = torch.tensor([_bits(s, p, t, purpose) for s, p, t in each], dtype=torch.int64).view(seeds.shape)
    else:
        numbers = _bits(seeds, positions, steps, purpose)
    # A Python float does not raise an integer tensor above float32: go to float64 by name.
    return numbers.to(torch.float64) * (1.0 / 9007199254740992.0)


def _bits(seed: Word, position: Word, step: Word, purpose: Purpose) -> Word:
    """53 random bits, or a tensor of them."""
    counter = (position & _MASK, (position >> 32) & _MASK, position * 0 + int(purpose), step)
    high, low, _, _ = philox(counter, (seed & _MASK, (seed >> 32) & _MASK))
    return ((high >> 5) << 26) | (low >> 6)


def as_int64(seed: int) -> int:
    """A 64-bit seed as the int64 with the same bits."""
    seed &= (1 << 64) - 1
    return seed - (1 << 64) if seed >= 1 << 63 else seed
