"""y = x·Wᵀ + b, in the form that is fastest for the number of rows on this device.

Contract
- `weight` is [n, k] as in the checkpoint, never copied or repacked: tied heads and fused parameters share it.
- The form is chosen from the number of rows, the dtype and the device alone, so within one process the same input
  gives the same bits.

Why three forms: on a CPU without native BF16 the BLAS behind `F.linear` is at its worst for a few rows.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

# Rows for which W·xᵀ beats x·Wᵀ, and the least number of rows worth a matrix product instead of a product with a
# vector.
_FEW_ROWS = 128
_LEAST_ROWS = 4


class Linear:
    __slots__ = ("_few_rows", "bias", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight  # [n, k]
        self.bias = bias  # [n]
        self._few_rows = _FEW_ROWS if weight.device.type == "cpu" and weight.dtype == torch.float32 else 0

    def __call__(self, x: Tensor) -> Tensor:
        """x [M, k] -> [M, n], not always contiguous."""
        rows = x.shape[0]
        if rows > self._few_rows:
            return functional.linear(x, self.weight, self.bias)
        if rows < _LEAST_ROWS:
            x = functional.pad(x, (0, 0, 0, _LEAST_ROWS - rows))
        product = torch.mm(self.weight, x.t())[:, :rows].t()
        return product if self.bias is None else product + self.bias
