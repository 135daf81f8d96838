"""Written text waits here to be learnt from: a ring of rows with the teacher's hidden states.

A row keeps all its tokens, because the student must read them, but hidden states for `selected` of its
positions only: the answers first, other positions to fill. The head and the loss cost far more than the
student's layers, so they are spent where drafts are verified.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.distill.text import Text


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one length and the teacher's answer at the selected positions."""

    tokens: Tensor  # [R, L] int64
    positions: Tensor  # [R, S] int64: hidden state s belongs to this position and gives the law of the next token
    hidden: Tensor  # [R, S, H]
    answers: Tensor  # [R, S] bool: the next token was sampled as the assistant
    temperature: Tensor  # [R] of the assistant's turns

    @property
    def num_selected(self) -> int:
        return self.positions.numel()


def select(text: Text, hidden: Tensor, selected: int, generator: torch.Generator) -> Batch:
    """A copy of `text` (hidden [R, L, H]) with `selected` positions a row, those before an answer's tokens first."""
    predicts_answer = text.is_answer[:, 1:]
    luck = torch.rand(predicts_answer.shape, generator=generator, device=predicts_answer.device)
    positions = (luck + predicts_answer).topk(selected, dim=1).indices.sort(dim=1).values
    return Batch(
        text.tokens.clone(),
        positions,
        hidden.gather(1, positions.unsqueeze(-1).expand(-1, -1, hidden.shape[-1])),
        predicts_answer.gather(1, positions),
        text.temperature.clone(),
    )


class ReplayBuffer:
    """The latest `capacity` rows of one length; draws uniformly."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.size = 0
        self._next = 0
        self._ring: list[Tensor] = []

    def add(self, batch: Batch) -> None:
        """Rows replace the oldest ones. All batches have the same shapes but for the number of rows."""
        fields = (batch.tokens, batch.positions, batch.hidden, batch.answers, batch.temperature)
        count = len(batch.tokens)
        if count > self.capacity:
            raise ValueError(f"{count} rows do not fit in a replay buffer of {self.capacity}.")
        if not self._ring:
            self._ring = [field.new_zeros((self.capacity, *field.shape[1:])) for field in fields]
        first = min(count, self.capacity - self._next)
        for ring, field in zip(self._ring, fields, strict=True):
            ring[self._next : self._next + first] = field[:first]
            ring[: count - first] = field[first:]
        self._next = (self._next + count) % self.capacity
        self.size = min(self.capacity, self.size + count)

    def skip(self, rows: int) -> None:
        """Go on as if `rows` rows had been added: they will have been replaced before anything is drawn."""
        self._next = (self._next + rows) % self.capacity
        self.size = min(self.capacity, self.size + rows)

    def draw(self, rows: int, generator: torch.Generator) -> Batch:
        """`rows` rows with replacement."""
        where = torch.randint(self.size, (rows,), generator=generator, device=self._ring[0].device)
        return Batch(*(ring[where] for ring in self._ring))
