"""Everything that decides a distillation run, in one frozen value that goes into the model card."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from paceline.distill.losses import LossTerm

Kind = Literal["raw", "chat", "document"]


@dataclass(frozen=True, slots=True)
class OptimizerChoice:
    """Optimizer of the layers' matrices; the table and the norms are always AdamW's."""

    matrices: Literal["adamw", "muon"] = "muon"
    learning_rate: float = 3e-3
    table_learning_rate: float = 3e-3
    weight_decay: float = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRecipe:
    """What the target writes. Rows x length of chats and of documents are equal, so that they share memory."""

    chat_rows: int = 4096
    chat_length: int = 512
    document_rows: int = 2048
    document_length: int = 1024
    document_prompts: tuple[int, ...] = (448, 640, 832)
    cycle: tuple[Kind, ...] = ("chat", "chat", "document")
    user_temperature: float = 0.85  # of user turns and plain texts: at 1.0 a small target rambles
    greedy_share: float = 0.4  # of the rows; the others' answers are drawn between these temperatures
    temperatures: tuple[float, float] = (0.5, 1.0)
    selected: int = 384  # positions of a row that are learnt from
    chat_capacity: int = 24 * 4096
    document_capacity: int = 16 * 2048
    fill: int = 4  # chat rounds before the first step
    held_out: tuple[int, int] = (512, 256)  # rows of chats and of documents that are never learnt from


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillRecipe:
    """Budgets are seconds, so that a lease or a lunch break is filled exactly; `clock` of the run measures them."""

    text: TextRecipe = TextRecipe()
    seconds: float = 960.0  # of writing and learning after the choice of the optimizer
    learning_share: float = 0.5  # of that time, until `write_until`; afterwards all of it
    write_until: float = 0.85
    chat_batch: int = 128  # rows a step; documents: as many as give the same number of positions
    document_share: float = 0.25  # of the steps
    warmup: float = 0.02
    candidates: tuple[OptimizerChoice, ...] = (OptimizerChoice(),)
    candidate_seconds: float = 8.0
    loss: tuple[LossTerm, ...] = (LossTerm("forward_kl"),)
    fork_at: float = 0.7
    final_losses: tuple[tuple[LossTerm, ...], ...] = ()  # from `fork_at` on, one branch each; the best is kept
    evaluate_every: float = 60.0
    head_chunk: int = 8192
    clip: float = 1.0
    seed: int = 1
