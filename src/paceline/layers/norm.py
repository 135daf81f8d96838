"""RMS norm (Zhang & Sennrich, 2019), and the residual addition that stands before it."""

from __future__ import annotations

import torch
from torch import Tensor


class RMSNorm:
    """x / sqrt(mean(x²) + eps) · weight over the last dimension, in float32 inside."""

    __slots__ = ("eps", "weight")

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight = weight  # [D]
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        return torch.rms_norm(x, self.weight.shape, self.weight, self.eps)
