"""A group of ranks that compute one model together, and the few things they say to each other.

Contract
- Every rank of a group makes the same calls in the same order with the same shapes; each call is a collective.
- `all_reduce` and `all_gather` give the same bits on every rank: what one rank has computed is copied, never computed
  twice. Acceptance is decided on gathered logits, so it is the same everywhere.
- On a GPU the collectives run on the current stream and may be captured in a CUDA graph, once the group has spoken
  for the first time (`World.connect` sees to that).
- A collective whose peer has died ends: with gloo at once and with an error, with NCCL when another thread calls
  `abort`, with or without one. The group is of no use afterwards.

Groups are objects of their own: torch's default process group, which belongs to the program around us, is not touched.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed
from torch import Tensor

from paceline.errors import ConfigurationError, EngineDeadError

dist: Any = torch.distributed  # its stores, options and backends have no public types

TIMEOUT = timedelta(minutes=30)  # of one collective: ranks load at their own pace; a dead one is noticed elsewhere


class CollectiveError(EngineDeadError):
    """Another rank did not take part to the end. What became of it is known where the ranks are watched."""


class Group(Protocol):
    rank: int
    size: int

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum over the ranks, in `x` itself. `x` must be contiguous."""
        ...

    def all_gather(self, x: Tensor) -> Tensor:
        """[L, n] on each rank -> [L, size * n] on all, in the order of the ranks."""
        ...

    def broadcast(self, x: Tensor) -> Tensor:
        """The first rank's `x`, in `x` itself."""
        ...

    def minimum(self, value: int) -> int:
        """The smallest of the ranks' values; waits for the device."""
        ...

    def abort(self) -> None: ...


class Alone:
    """A group of one."""

    rank = 0
    size = 1

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        return x

    def broadcast(self, x: Tensor) -> Tensor:
        return x

    def minimum(self, value: int) -> int:
        return value

    def abort(self) -> None:
        """Nobody waits."""


ALONE = Alone()


class ProcessGroup:
    """Ranks in processes of their own: NCCL between GPUs, gloo between CPUs."""

    def __init__(self, store: Any, rank: int, size: int, device: torch.device) -> None:
        """`store`: torch's, shared by these ranks alone. Returns when it is known how to reach the others."""
        self.rank = rank
        self.size = size
        self._device = device
        self._backend = _backend(store, rank, size, device)
        self._all_reduce, self._minimum = dist.AllreduceOptions(), dist.AllreduceOptions()
        self._minimum.reduceOp = dist.ReduceOp.MIN
        self._gather, self._broadcast = dist.distributed_c10d.AllgatherOptions(), dist.BroadcastOptions()
        self._broadcast.rootRank = 0
        for options in (self._all_reduce, self._minimum, self._gather, self._broadcast):
            options.asyncOp = False  # on the current stream, so without events between two streams

    def all_reduce(self, x: Tensor) -> Tensor:
        self._do(self._backend.allreduce, [x], self._all_reduce)
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        rows, width = x.shape
        parts = torch.empty((self.size, rows, width), dtype=x.dtype, device=x.device)
        self._do(self._backend._allgather_base, parts.view(-1), x.contiguous().view(-1), self._gather)
        return parts.transpose(0, 1).reshape(rows, self.size * width)

    def broadcast(self, x: Tensor) -> Tensor:
        self._do(self._backend.broadcast, [x], self._broadcast)
        return x

    def minimum(self, value: int) -> int:
        wanted = torch.tensor([value], dtype=torch.int64, device=self._device)
        self._do(self._backend.allreduce, [wanted], self._minimum)
        return int(wanted.item())

    def _do(self, collective: Callable[..., Any], *arguments: Any) -> None:
        """Later steps on this stream see the result. A backend that sees to that itself gives nothing to wait for."""
        try:
            work = collective(*arguments)
            if work is not None:
                work.wait()
        except RuntimeError as error:
            raise CollectiveError(f"Rank {self.rank} of {self.size} lost another rank: {error}") from error

    def abort(self) -> None:
        if self._device.type == "cpu":
            return  # gloo's collectives fail by themselves as soon as a peer's connection is closed
        with contextlib.suppress(RuntimeError):  # of a backend that has failed already
            self._backend.abort()


def _backend(store: Any, rank: int, size: int, device: torch.device) -> Any:
    """A backend object of torch, not known to the rest of torch."""
    if device.type == "cpu":
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._timeout = TIMEOUT
        return dist.ProcessGroupGloo(store, rank, size, options)
    if not dist.is_nccl_available():
        raise ConfigurationError(
            "tensor_parallel_size above 1 on GPUs needs NCCL, which this build of PyTorch does not have. Install a "
            "CUDA build of torch for Linux."
        )
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = TIMEOUT
    return dist.ProcessGroupNCCL(store, rank, size, options)
