"""Rotary position embedding (Su et al., 2021), halves convention: pairs are (i, i + D/2).

The table holds, for each position, cos and a *signed* sin (minus in the first half), both [D], so that
rotating is `x·cos + roll(x, D/2)·sin`: three operations for all query and key heads together.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from paceline.layers.rope import Rope


def inverse_frequencies(rope: Rope, head_dim: int) -> Tensor:
    """[head_dim / 2] float32, scaled as the checkpoint asks."""
    frequencies = 1.0 / (rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim))
    if rope.kind == "linear":
        return frequencies / rope.factor
    if rope.kind == "llama3":
        return _llama3(frequencies, rope)
    return frequencies


def _llama3(frequencies: Tensor, rope: Rope) -> Tensor:
    """Llama 3.1: long wavelengths are stretched by `factor`, short ones kept, those between interpolated."""
    turns = rope.original_max_position_embeddings * frequencies / (2 * math.pi)  # within the original context
    kept = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    kept = kept.clamp(0.0, 1.0)
    return frequencies * (kept + (1.0 - kept) / rope.factor)


def rotary_table(rope: Rope, head_dim: int, num_positions: int) -> Tensor:
    """[num_positions, 2, head_dim] float32: cos, then signed sin."""
    positions = torch.arange(num_positions, dtype=torch.float32)
    angles = torch.outer(positions, inverse_frequencies(rope, head_dim))
    cos, sin = angles.cos(), angles.sin()
    return torch.stack((torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)), dim=1)


def rotate_(heads: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotate `heads` [T, H, D] in place; `cos` and `sin` are [T, 1, D]."""
    rolled = heads.roll(heads.shape[-1] // 2, -1)
    heads.mul_(cos).addcmul_(rolled, sin)
