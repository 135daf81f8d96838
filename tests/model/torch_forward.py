"""Loads models without the C++ forward: what runs on a machine without a compiler, and what it is compared with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from paceline.runner import model_runner


@contextmanager
def torch_forward() -> Iterator[None]:
    """Models loaded inside keep their weights in torch's form, as captured steps and the fused forward need them."""
    with mock.patch.object(model_runner, "native_forward", return_value=None):
        yield
