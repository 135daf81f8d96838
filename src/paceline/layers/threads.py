"""Threads of a CPU's forward: one where the pieces of work are too small to be worth waking the others.

Between two parallel regions the other threads go to sleep, and waking them takes 60 to 150 µs (two AVX2 cores,
libgomp, measured), more than a product of [8, 256] by [256, 768] takes on one thread (120 µs against 200 with two).
A small draft's pass is made of nothing else: on one thread five passes take 22 ms and not 35. Its head is large again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from paceline.layers.linear import Linear

_SMALL_PRODUCT = 1 << 22  # multiplications of a product that one thread does in about the time of a wake-up
_SHORT = 1 << 23  # numbers of a few laws
_SMALL_WEIGHT = 1 << 21  # bytes that one thread reads in that time


def mean_weight(linears: Sequence[Linear]) -> tuple[int, int]:
    """Of one product: weights, and their bytes."""
    count = max(1, len(linears))
    return sum(linear.num_weights for linear in linears) // count, sum(linear.num_bytes for linear in linears) // count


def is_small(weights: int, num_bytes: int, num_rows: int) -> bool:
    """Whether products of `num_rows` rows with weights of this size are done sooner on one thread."""
    return num_bytes <= _SMALL_WEIGHT and weights * num_rows <= _SMALL_PRODUCT


def is_short(numbers: Tensor) -> bool:
    """Whether operators that pass over these numbers, those of some laws or logits, had better be done by one thread:
    a million in some 100 µs. The others may take 10 ms to come on a machine with other work; and once woken they go on
    spinning for some milliseconds, in which the forward that follows, on threads of its own, lacks a processor: 6 to 8
    ms of a pass of 12 (two cores, one row that samples beside a greedy one, K = 1)."""
    return numbers.device.type == "cpu" and numbers.numel() <= _SHORT


@contextmanager
def one_thread(wanted: bool) -> Iterator[None]:
    """Inside, torch's operators on a CPU use one thread, if `wanted`. Setting the number takes half a microsecond."""
    before = torch.get_num_threads()
    if not wanted or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
