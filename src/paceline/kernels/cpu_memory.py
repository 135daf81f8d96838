"""Memory for weights that every forward pass reads from end to end: in large pages, where the system has them.

Pages of 4 KiB would be 66,000 for the 270 MB of a small model, far more than a processor keeps track of: every one
costs a look-up in tables of memory, once a pass. Linux gives pages of 2 MiB to memory that asks for them
(`/sys/kernel/mm/transparent_hugepage/enabled` is `madvise` or `always`); elsewhere this is memory like any other.
"""

from __future__ import annotations

import mmap
from contextlib import suppress

import torch
from torch import Tensor

_PAGE = 2 << 20
_CHUNK = 32 << 20  # of small tensors together
_LINE = 64  # bytes at whose multiples tensors begin


class WeightMemory:
    """Takes tensors one by one; their memory lives as long as one of them does."""

    def __init__(self) -> None:
        self._left = torch.empty(0, dtype=torch.uint8)  # of the chunk that is being filled

    def keep(self, tensor: Tensor) -> Tensor:
        """A contiguous copy in memory of this kind."""
        size = -(-tensor.nbytes // _LINE) * _LINE
        if size > _CHUNK // 2:
            room = _mapped(size)
        else:
            if size > len(self._left):
                self._left = _mapped(_CHUNK)
            room, self._left = self._left[:size], self._left[size:]
        return room[: tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor)


def _mapped(size: int) -> Tensor:
    """Zeros, uint8 [size], that begin with a page; they take memory as they are written."""
    mapping = mmap.mmap(-1, size + _PAGE)
    with suppress(AttributeError, OSError):  # a system without such pages
        mapping.madvise(mmap.MADV_HUGEPAGE)
    room = torch.frombuffer(mapping, dtype=torch.uint8)
    start = -room.data_ptr() % _PAGE
    return room[start : start + size]
