"""y = x·Wᵀ + b.

Contract
- `weight` is [n, k] as in the checkpoint until `pack`; afterwards the layer owns its own form of it.
- On a CPU a row of the result has the same bits however many rows are computed with it, so that verifying K+1 tokens
  gives exactly the logits of K+1 single steps. oneDNN's packed product has this property, and is the fastest one at
  every number of rows; the product behind `F.linear` (a BLAS call) has neither: on an AVX2 CPU it took three times as
  long at 6 rows as at 1 (packed: 1.3 to 1.7 times).

The packed form is what torch's own inductor uses for frozen linears (the `mkldnn` operators below). They are not
documented, so a build or a dtype without them falls back to `F.linear`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_EXPECTED_ROWS = 8  # the packed layout is chosen for this many; others work with it at no visible cost


class Linear:
    __slots__ = ("_packed", "bias", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight  # [n, k]; empty after pack()
        self.bias = bias  # [n]
        self._packed: Tensor | None = None

    def pack(self) -> None:
        """Give the weight its fastest form, once it is loaded. The original is dropped (a tied embedding keeps it)."""
        self._packed = _packed(self.weight)
        if self._packed is not None:
            self.weight = self.weight.new_empty(0)

    def __call__(self, x: Tensor) -> Tensor:
        """x [M, k] -> [M, n]"""
        if self._packed is None:
            return functional.linear(x, self.weight, self.bias)
        return _packed_product(x, self._packed, self.bias)

    @property
    def is_packed(self) -> bool:
        return self._packed is not None


def _packed(weight: Tensor) -> Tensor | None:
    """oneDNN's own layout of `weight`, or None where this build, device or dtype has none."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.enabled:
        return None
    try:
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, _EXPECTED_ROWS)
        _packed_product(weight[:1], packed, None)
    except (RuntimeError, AttributeError):
        return None
    return packed


def _packed_product(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    operator: Any = torch.ops.mkldnn._linear_pointwise
    product: Tensor = operator(x, packed, bias, "none", [], "")
    return product
