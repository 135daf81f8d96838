"""y = x·Wᵀ + b, the weight in the model's dtype or in FP8.

Contract
- `weight` is [n, k] as in the checkpoint until `pack`; afterwards the layer owns its own form of it.
- An FP8 weight (float8_e4m3fn) comes with `weight_scale` [n] float32: row i stands for weight[i] * weight_scale[i].
  Its product takes rows that are quantised already (by the kernel that made them), or quantises what it is given, one
  scale a token.
- On a CPU a row of the result has the same bits however many rows are computed with it, so that verifying K+1 tokens
  gives exactly the logits of K+1 single steps. oneDNN's packed product has this property, and is the fastest one at
  every number of rows; the product behind `F.linear` (a BLAS call) has neither: on an AVX2 CPU it took three times as
  long at 6 rows as at 1 (packed: 1.3 to 1.7 times).
- With a `group` the inputs are split over its ranks, and the product is the sum of theirs.

The packed form is what torch's own inductor uses for frozen linears (the `mkldnn` operators below). They are not
documented, so a build or a dtype without them falls back to `F.linear`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from paceline.distributed.group import ALONE, Group
from paceline.kernels.fp8 import QuantizedRows, quantize_rows
from paceline.kernels.fp8_linear import fp8_linear, fp8_product
from paceline.kernels.product import Product

# Up to a number of rows, products are made for multiples of so many. oneDNN compiles one program for every number of
# rows and every weight's shape, half a megabyte each, and keeps them: a server that meets every number between 1 and
# 512 would grow by a gigabyte.
_ROW_STEPS = ((16, 1), (64, 4), (128, 8), (256, 16))
_LAST_ROW_STEP = 32

_EXPECTED_ROWS = 8  # the packed layout is chosen for this many; others work with it at no visible cost


class Linear:
    __slots__ = ("_packed", "_shape", "bias", "group", "out_dtype", "weight", "weight_scale")

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        weight_scale: Tensor | None = None,
        out_dtype: torch.dtype | None = None,
        group: Group = ALONE,
    ) -> None:
        self.weight = weight  # [n, k]; empty after pack() where there is a packed form
        self.bias = bias  # [n]
        self.weight_scale = weight_scale  # [n] float32 of an FP8 weight
        self.out_dtype = out_dtype or weight.dtype  # of an FP8 product; others have their input's
        self.group = group  # of ranks that each hold some of the inputs, whose products are added
        self._shape = weight.shape  # pack() drops the weight
        self._packed: Tensor | None = None

    def pack(self) -> None:
        """Give the weight its fastest form, once it is loaded. The original is dropped (a tied embedding keeps it)."""
        self._packed = None if self.is_fp8 else _packed(self.weight)
        if self._packed is not None:
            self.weight = self.weight.new_empty(0)

    def take_weight(self) -> Tensor:
        """The weight [n, k], for who computes with it from now on; this linear has none any more."""
        weight, self.weight = self.weight, self.weight.new_empty(0)
        return weight

    def __call__(self, x: Tensor | QuantizedRows) -> Tensor:
        """x [M, k] -> [M, n]. Only an FP8 linear takes QuantizedRows."""
        product = self._own(x)
        return self.group.all_reduce(product) if self.group.size > 1 else product

    def _own(self, x: Tensor | QuantizedRows) -> Tensor:
        if self.weight_scale is not None:
            rows = x if isinstance(x, QuantizedRows) else quantize_rows(x)
            return fp8_linear(rows, self.weight, self.weight_scale, self.bias, self.out_dtype)
        if isinstance(x, QuantizedRows):
            raise TypeError("this linear's weight is not FP8; give it rows in the model's dtype")
        if self._packed is None:
            return functional.linear(x, self.weight, self.bias)
        return _packed_product(x, self._packed, self.bias)

    def product(self, x: Tensor | QuantizedRows) -> Product:
        """As a call, for a reader that applies the scales an FP8 product of many rows may owe. A sum over ranks owes
        none: each rank's rows have scales of their own."""
        is_partial = self.group.size > 1
        if self.weight_scale is None or self.bias is not None or self.out_dtype != torch.bfloat16 or is_partial:
            return Product(self(x))
        rows = x if isinstance(x, QuantizedRows) else quantize_rows(x)
        return fp8_product(rows, self.weight, self.weight_scale, None, self.out_dtype)

    @property
    def num_weights(self) -> int:
        return self._shape.numel()

    def compile(self, num_rows: int) -> None:
        """Have oneDNN's program for products of so many rows; other weights of this shape then have it as well."""
        if self._packed is not None:
            _packed_product(torch.zeros(num_rows, self._shape[1], dtype=self.out_dtype), self._packed, self.bias)

    @property
    def num_bytes(self) -> int:
        """Of weight, scales and bias, in the form they have now."""
        tensors = (self.weight, self._packed, self.weight_scale, self.bias)
        return sum(_num_bytes(tensor) for tensor in tensors if tensor is not None)

    @property
    def is_fp8(self) -> bool:
        return self.weight_scale is not None

    @property
    def is_packed(self) -> bool:
        return self._packed is not None


def has_fp8_products(device: torch.device) -> bool:
    """Whether the device multiplies E4M3 itself: NVIDIA's from Ada and Hopper on."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


def _num_bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()  # a packed tensor is opaque: it has no nbytes of its own


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
    num_rows, padded = x.shape[0], padded_rows(x.shape[0])
    if padded > num_rows:
        x = functional.pad(x, (0, 0, 0, padded - num_rows))
    product: Tensor = operator(x, packed, bias, "none", [], "")
    return product[:num_rows]


def product_sizes(most_rows: int) -> list[int]:
    """The numbers of rows that packed products of up to `most_rows` rows are computed with."""
    return sorted({padded_rows(rows) for rows in range(1, most_rows + 1)})


def padded_rows(num_rows: int) -> int:
    """Rows that a packed product of `num_rows` is computed with."""
    step = next((step for most, step in _ROW_STEPS if num_rows <= most), _LAST_ROW_STEP)
    return -(-num_rows // step) * step
