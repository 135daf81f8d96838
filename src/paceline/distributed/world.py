"""A rank's place among the ranks of one engine, and its groups: the target's and the draft's.

With `size` ranks and drafts computed by `draft_size` of them together, ranks [0, d), [d, 2d), … each hold a whole
draft and do the same with it: its random numbers are counters and its logits are gathered, so that all arrive at the
same tokens. draft_size = 1 is a draft replicated on every rank: no rank ever waits for another while drafting.

Ranks meet through a store that the leader keeps on an ephemeral port of 127.0.0.1; two engines share nothing.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch

from paceline.distributed.group import ALONE, Group, ProcessGroup, dist

_MEETING = timedelta(seconds=120)  # every rank has said that it is up before anyone waits for another
# Over the loopback alone, as befits one machine. NVLink multicast stays off: on shared hosts its faults outlive us.
_NCCL_SETTINGS = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}


@dataclass(frozen=True, slots=True)
class World:
    device: torch.device
    rank: int = 0
    size: int = 1
    target: Group = ALONE
    draft: Group = ALONE
    _aborting: list[threading.Thread] = field(default_factory=list, repr=False)

    @classmethod
    def connect(cls, port: int, rank: int, size: int, draft_size: int, device: torch.device) -> World:
        """Meet the other ranks at the store on `port`; returns when all groups have spoken once."""
        for name, value in _NCCL_SETTINGS.items():
            os.environ.setdefault(name, value)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        store = dist.TCPStore("127.0.0.1", port, size, is_master=False, wait_for_workers=False, timeout=_MEETING)
        target = _group("target", store, rank, size, device)
        draft: Group = target if draft_size == size else ALONE
        if 1 < draft_size < size:
            draft = _group(f"draft{rank // draft_size}", store, rank % draft_size, draft_size, device)
        return cls(device, rank, size, target, draft)

    def abort(self) -> None:
        """Let go of whoever waits for another rank; from any thread, and without waiting.

        NCCL ends its kernels at once, but does not return before every captured graph that holds its communicator is
        gone (`ncclCommAbort`), which is up to others.
        """
        if self._aborting:
            return
        for group in {self.target, self.draft}:
            thread = threading.Thread(target=_abort, args=(group,), name="paceline-abort", daemon=True)
            self._aborting.append(thread)
            thread.start()

    def wait_until_aborted(self, seconds: float) -> None:
        """For at most so long."""
        deadline = time.monotonic() + seconds
        for thread in self._aborting:
            thread.join(max(0.0, deadline - time.monotonic()))


def _abort(group: Group) -> None:
    with contextlib.suppress(Exception):  # best effort: the engine is over already
        group.abort()


def _group(name: str, store: Any, rank: int, size: int, device: torch.device) -> Group:
    group = ProcessGroup(dist.PrefixStore(name, store), rank, size, device)
    group.minimum(rank)  # the communicator is made at the first collective, which must not be a captured one
    return group


class MeetingPoint:
    """The leader's store. It lives as long as this object, and leaves no file and no open port."""

    def __init__(self, size: int) -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(size + 8)
            self.port: int = listener.getsockname()[1]
            self._store = dist.TCPStore(
                "127.0.0.1", self.port, size, is_master=True, wait_for_workers=False, timeout=_MEETING,
                master_listen_fd=listener.detach(),
            )  # fmt: skip
