"""Everything that decides a distillation run, in one frozen value that goes into the model card.

All budgets are counts, so that a run is a function of its recipe: where it is interrupted, and how fast the machine
is, changes nothing. `minutes` is turned into a count once, by measuring, and the count is kept with the run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from paceline.distill.losses import LossTerm

Kind = Literal["raw", "chat", "document", "data"]


@dataclass(frozen=True, slots=True)
class OptimizerChoice:
    """Optimizer of the layers' matrices; the table and the norms are always AdamW's."""

    matrices: Literal["adamw", "muon"] = "muon"
    learning_rate: float = 5e-3
    table_learning_rate: float = 6e-3
    weight_decay: float = 0.05

    def __str__(self) -> str:
        return f"{self.matrices}:{self.learning_rate:g}:{self.table_learning_rate:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRecipe:
    """What the target writes. Chats and plain texts are `rows` x `length`; documents and a user's own prompts
    are half as many rows of twice the length, so that both kinds of round share memory."""

    rows: int = 4096
    length: int = 512
    cycle: tuple[Kind, ...] = ("chat", "chat", "document")
    prompt_shares: tuple[float, ...] = (0.4375, 0.625, 0.8125)  # of a document row's length: its prompt
    user_temperature: float = 0.85  # of user turns and plain texts: at 1.0 a small target rambles
    greedy_share: float = 0.4  # of the rows; the others' answers are drawn between these temperatures
    temperatures: tuple[float, float] = (0.5, 1.0)
    selected: int = 384  # positions of a row that are learnt from
    held_out: int = 512  # rows of chats that are never learnt from; of documents and of data half as many
    data_mix: float = 0.0  # share of rounds, and of steps, that is the user's own traffic
    buffer_bytes: int = 60 << 30  # of hidden states that wait to be learnt from

    @property
    def long_rows(self) -> int:
        return max(1, self.rows // 2)

    @property
    def long_length(self) -> int:
        return 2 * self.length

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The first round of each kind that the run needs, in the order they are written."""
        own: tuple[Kind, ...] = () if self.data_mix >= 1 else ("raw", "chat", "document")
        return own + (("data",) if self.data_mix > 0 else ())

    def kind_of(self, number: int) -> Kind:
        """What round `number` holds: each kind once, then the user's share spread evenly among the target's own."""
        if number < len(self.kinds):
            return self.kinds[number]
        if math.floor((number + 1) * self.data_mix) > math.floor(number * self.data_mix):
            return "data"
        return self.cycle[(number - math.floor(number * self.data_mix)) % len(self.cycle)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillRecipe:
    """One of `tokens` and `minutes` is given."""

    text: TextRecipe = TextRecipe()
    tokens: int | None = None  # positions to learn from, each look counted
    minutes: float | None = None  # of writing and learning
    reuse: float = 7.0  # looks at a written position, on average
    write_until: float = 0.85  # share of the steps; the last ones see no new text
    batch: int = 128  # rows of chats a step; documents: as many as give the same number of positions
    document_share: float = 0.25  # of the steps that learn from the target's own text
    warmup: float = 0.02
    candidates: tuple[OptimizerChoice, ...] = (OptimizerChoice(),)
    candidate_steps: int = 250
    loss: tuple[LossTerm, ...] = (LossTerm("forward_kl"),)
    fork_at: float = 0.7
    final_losses: tuple[tuple[LossTerm, ...], ...] = ()  # from `fork_at` on, one branch each; the best is kept
    looks: int = 20  # at the held-out rows, while learning
    head_chunk: int = 8192
    clip: float = 1.0
    seed: int = 1

    @property
    def tokens_per_step(self) -> float:
        """Positions of a step, on average over the kinds."""
        text = self.text
        long_share = text.data_mix + (1 - text.data_mix) * self.document_share
        long_batch = self.long_batch
        return text.selected * (self.batch * (1 - long_share) + long_batch * long_share)

    @property
    def long_batch(self) -> int:
        return max(1, self.batch * self.text.length // self.text.long_length)

    @property
    def branch_factor(self) -> float:
        """Trainer steps for a step of the run, on average: every branch after `fork_at` takes its own."""
        return 1 + (1 - self.fork_at) * max(0, len(self.final_losses) - 1)

    def steps_for(self, tokens: int) -> int:
        return max(1, round(tokens / self.tokens_per_step))

    def rounds_for(self, steps: int) -> int:
        """Rounds of text for so many steps: each position is seen `reuse` times."""
        per_round = self.text.rows * self.text.selected  # of a chat round; long rounds have half the rows
        return max(len(self.text.kinds), math.ceil(steps * self.tokens_per_step / self.reuse / per_round))

    def rounds_due(self, step: int, steps: int) -> int:
        """Rounds that must be there before step number `step` of `steps`."""
        first = len(self.text.kinds)
        progress = min(1.0, step / (steps * self.write_until))
        return first + math.floor((self.rounds_for(steps) - first) * progress)
