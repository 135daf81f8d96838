"""Rounds of text: token ids with the marks that say what the target answered, and the folder that keeps them.

A round is written once, under its number, whole or not at all; a run that was killed reads what is there and goes on
writing after it. Hidden states are not kept: the target reads a row much faster than it wrote it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from paceline.distill.recipe import Kind


@dataclass(frozen=True, slots=True)
class Text:
    """Rows of one length, on the device that learns."""

    kind: Kind
    tokens: Tensor  # [B, L] int64
    is_answer: Tensor  # [B, L] bool: the target's own answer, its closing token included, or text given as it is
    temperature: Tensor  # [B] of the answers


class TextStore:
    """Rounds in a folder, numbered from 0 without gaps."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __contains__(self, number: int) -> bool:
        return self._path(number).is_file()

    def save(self, number: int, text: Text, *, seconds: float) -> None:
        """`seconds`: what writing it took."""
        self.folder.mkdir(parents=True, exist_ok=True)
        tensors = {
            "tokens": text.tokens.to(torch.int32),
            "is_answer": text.is_answer,
            "temperature": text.temperature,
        }
        facts = {"kind": text.kind, "seconds": f"{seconds:.3f}"}
        unfinished = self._path(number).with_suffix(".unfinished")
        save_file({k: v.cpu().contiguous() for k, v in tensors.items()}, unfinished, metadata=facts)
        os.replace(unfinished, self._path(number))

    def kind(self, number: int) -> Kind:
        kind: Kind = self._facts(number)["kind"]
        return kind

    def seconds(self, number: int) -> float:
        return float(self._facts(number)["seconds"])

    def load(self, number: int, device: torch.device) -> Text:
        with safe_open(self._path(number), framework="pt") as file:
            fields = {name: file.get_tensor(name).to(device) for name in ("tokens", "is_answer", "temperature")}
        return Text(self.kind(number), fields["tokens"].long(), fields["is_answer"], fields["temperature"])

    def _facts(self, number: int) -> dict[str, Any]:
        with safe_open(self._path(number), framework="pt") as file:
            facts: dict[str, Any] = file.metadata()
        return facts

    def _path(self, number: int) -> Path:
        return self.folder / f"round-{number:05d}.safetensors"


def round_bytes(rows: int, length: int) -> int:
    """What a round takes on disk, without the header."""
    return rows * (length * 5 + 4)
