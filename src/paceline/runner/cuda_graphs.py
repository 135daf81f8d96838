"""Captured functions: CUDA graphs by key, one memory pool, replayed over static inputs.

Capture the largest first: what it allocates serves all that follow, because graphs of one pool never run at the
same time. On a device without graphs a function is kept and called as it is, so the same code is tested on a CPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

Result = TypeVar("Result")


class GraphCache(Generic[Result]):
    """Functions of no arguments that launch work of a fixed shape and return tensors of a fixed place."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._functions: dict[tuple[int, ...], Callable[[], Result]] = {}
        self._pool: Any = None  # the handle of the shared memory pool; torch has no public type for it
        self.capture_seconds = 0.0
        self.capture_bytes = 0

    def __contains__(self, key: tuple[int, ...]) -> bool:
        return key in self._functions

    def __len__(self) -> int:
        return len(self._functions)

    def capture(
        self, key: tuple[int, ...], function: Callable[[], Result], trial: Callable[[], object] | None = None
    ) -> None:
        """Record `function`. Before it `trial` runs once, so that every kernel is compiled and loaded: something that
        launches each kernel in the same way; None: `function` itself."""
        if self._device.type != "cuda":
            self._functions[key] = function
            return
        started = time.perf_counter()
        free_before = torch.cuda.mem_get_info(self._device)[0]
        (trial or function)()
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        # thread_local: NCCL's own threads may ask the driver for the state of events meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            result = function()
        self._pool = graph.pool()

        def replay() -> Result:
            graph.replay()
            return result

        self._functions[key] = replay
        self.capture_seconds += time.perf_counter() - started
        self.capture_bytes += max(0, free_before - torch.cuda.mem_get_info(self._device)[0])

    def clear(self) -> None:
        """Give every graph back. The device must be idle, or what runs on it abandoned."""
        self._functions.clear()

    def run(self, key: tuple[int, ...]) -> Result:
        """Launch; returns at once on a GPU. The result's tensors are overwritten by the next run of any key."""
        return self._functions[key]()


def padded_sizes(largest: int) -> list[int]:
    """Numbers of rows to capture: fine steps where a row more costs most, and always `largest` itself."""
    steps = [1, 2, 4, 6, 8, *range(12, 33, 4), *range(40, 65, 8), *range(80, 129, 16), *range(160, largest + 1, 32)]
    return sorted({size for size in steps if size < largest} | {largest})
