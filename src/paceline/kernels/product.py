"""A matrix product that may still owe its scales."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Product(NamedTuple):
    """value = data · row_scale · column_scale; None: applied already.

    cuBLASLt multiplies FP8 fastest without scales. They are left to the kernel that reads the product next, where they
    cost nothing. bfloat16 has float32's range, so rounding before or after the scales is the same relative error.
    """

    data: Tensor  # [M, N]
    row_scale: Tensor | None = None  # [M] float32
    column_scale: Tensor | None = None  # [N] float32

    @property
    def is_scaled(self) -> bool:
        return self.row_scale is None

    def value(self) -> Tensor:
        """[M, N] float32, for references."""
        if self.row_scale is None or self.column_scale is None:
            return self.data.float()
        return self.data.float() * (self.row_scale.unsqueeze(1) * self.column_scale)


def as_product(x: Tensor | Product) -> Product:
    return x if isinstance(x, Product) else Product(x)
