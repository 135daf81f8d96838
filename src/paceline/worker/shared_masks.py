"""SharedMasks: grammar masks in a world of several ranks. The leader computes them, and all use the same.

Followers need no tokenizer and compile nothing; and what is decided by a clock, such as giving up on a grammar that
takes too long, is decided once. The calls come in the same order on every rank, because each runs the same step.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from paceline.distributed.group import Group
from paceline.layers.restrictions import MaskProvider
from paceline.plan import RowPlan


class SharedMasks:
    """A `MaskProvider`. `own`: the leader's, and None on all other ranks."""

    def __init__(self, own: MaskProvider | None, group: Group, vocab_size: int, device: torch.device) -> None:
        self._own = own
        self._group = group
        self._vocab_size = vocab_size
        self._device = device

    def masks(self, row: RowPlan, drafts: list[int], first_place: int, num_places: int) -> Tensor:
        bits = torch.ones((num_places, self._vocab_size), dtype=torch.uint8, device=self._device)
        if self._own is not None and (own := self._own.masks(row, drafts, first_place, num_places)) is not None:
            bits.copy_(own)
        return self._group.broadcast(bits).to(torch.bool)

    def num_legal(self, row: RowPlan, drafts: list[int]) -> int:
        found = self._own.num_legal(row, drafts) if self._own is not None else 0
        return int(self._group.broadcast(torch.tensor([found], device=self._device)).item())

    def keep(self, seq_ids: Iterable[int]) -> None:
        if self._own is not None:
            self._own.keep(seq_ids)

    def failure(self, seq_id: int) -> str | None:
        """The leader's answer: nobody asks a follower for its results."""
        return self._own.failure(seq_id) if self._own is not None else None
