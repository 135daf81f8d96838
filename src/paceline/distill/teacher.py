"""The target as a teacher: it reads rows of text, and its law after each token is `hidden @ head.T`.

A plain Llama with a tied head is this package's own dense model, which the batched decoder of a GPU writes with too;
every other supported architecture is read by transformers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.distill.model import Llama, is_plain_llama, load_llama
from paceline.models.architecture import read_architecture


@dataclass(frozen=True, slots=True, kw_only=True)
class Teacher:
    path: Path | None  # the directory it was loaded from
    config: dict[str, Any]  # config.json
    head: Tensor  # [V, H]
    forward: Callable[[Tensor], Tensor]  # [R, T] token ids -> [R, T, H] after the final norm
    max_positions: int
    dense: Llama | None = None  # present if the target is a plain Llama with a tied head

    @classmethod
    def of_dense(cls, model: Llama, config: dict[str, Any], path: Path | None = None) -> Teacher:
        return cls(
            path=path, config=config, head=model.table.detach(), forward=model,
            max_positions=model.shape.max_positions, dense=model,
        )  # fmt: skip

    @property
    def device(self) -> torch.device:
        return self.head.device

    @property
    def vocab_size(self) -> int:
        return self.head.shape[0]

    @torch.no_grad()
    def read(self, tokens: Tensor, *, positions_at_once: int = 16384) -> Tensor:
        """Hidden states [R, L, H] of rows [R, L], a few rows at a time."""
        rows = max(1, positions_at_once // tokens.shape[1])
        return torch.cat([self.forward(tokens[start : start + rows]) for start in range(0, len(tokens), rows)])


def load_teacher(path: Path, *, dtype: torch.dtype, device: torch.device) -> Teacher:
    """Raises UnsupportedModelError for what Paceline could not serve either."""
    architecture = read_architecture(path)
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    if is_plain_llama(config):
        model = load_llama(path, dtype=dtype, device=device).requires_grad_(False)
        return Teacher.of_dense(model, config, path)
    from transformers import AutoModelForCausalLM

    theirs: Any = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, local_files_only=True)
    theirs = theirs.to(device).eval().requires_grad_(False)

    def forward(tokens: Tensor) -> Tensor:
        hidden: Tensor = theirs.model(input_ids=tokens, use_cache=False).last_hidden_state
        return hidden

    return Teacher(
        path=path, config=config, head=theirs.get_output_embeddings().weight.detach(), forward=forward,
        max_positions=architecture.max_position_embeddings,
    )  # fmt: skip
