"""The rate at which this device reads memory, measured: the maximum over a tensor far larger than its caches."""

from __future__ import annotations

import time

import torch

_BYTES = {"cuda": 4 << 30, "cpu": 256 << 20}
_TRIALS = 5


def read_bandwidth(device: str) -> float:
    """Bytes a second, the best of a few readings."""
    numbers = torch.ones(_BYTES[device] // 4, device=device)
    numbers.max()
    best = min(_seconds(numbers, device) for _ in range(_TRIALS))
    size = numbers.nbytes
    del numbers
    if device == "cuda":
        torch.cuda.empty_cache()
    return size / best


def _seconds(numbers: torch.Tensor, device: str) -> float:
    if device == "cuda":
        return _cuda_seconds(numbers)
    started = time.perf_counter()
    numbers.max()
    return time.perf_counter() - started


def _cuda_seconds(numbers: torch.Tensor) -> float:
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(_TRIALS):  # so that launching is nothing beside reading
        numbers.max()
    torch.cuda.synchronize()
    return (time.perf_counter() - started) / _TRIALS
