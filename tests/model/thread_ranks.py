"""Ranks that are threads of this process: a group without processes, for tests of what ranks compute together."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")


class _Board:
    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=30)
        self.shown: list[Tensor] = [torch.empty(0)] * size


class ThreadGroup:
    """A `distributed.group.Group`."""

    def __init__(self, rank: int, size: int, board: _Board) -> None:
        self.rank, self.size, self._board = rank, size, board

    def _exchange(self, x: Tensor) -> list[Tensor]:
        self._board.shown[self.rank] = x.clone()
        self._board.barrier.wait()
        found = list(self._board.shown)
        self._board.barrier.wait()
        return found

    def all_reduce(self, x: Tensor) -> Tensor:
        assert x.is_contiguous()
        return x.copy_(torch.stack(self._exchange(x)).sum(0))

    def all_gather(self, x: Tensor) -> Tensor:
        return torch.cat(self._exchange(x), dim=1)

    def broadcast(self, x: Tensor) -> Tensor:
        return x.copy_(self._exchange(x)[0])

    def minimum(self, value: int) -> int:
        return int(min(self._exchange(torch.tensor(value))))

    def abort(self) -> None:
        self._board.barrier.abort()


def on_ranks(size: int, work: Callable[[ThreadGroup], Result]) -> list[Result]:
    """What each rank returns."""
    board = _Board(size)
    groups = [ThreadGroup(rank, size, board) for rank in range(size)]

    def guarded(group: ThreadGroup) -> Result:
        try:
            return work(group)
        except BaseException:
            group.abort()  # nobody waits for this one
            raise

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(guarded, groups))
