"""Triton where it is installed; and how a kernel is started behind the one before it.

Triton is optional: without it (a CPU installation) every operation of this package runs its torch reference, and the
bodies of the kernels are never executed. Kernel files therefore say `from paceline.kernels.triton_support import jit,
tl, triton` and decorate with `jit`.

Programmatic dependent launch (Hopper and later): a kernel may start while the one before it on the stream still runs.
Between its start and `wait_for_previous` it may read what no kernel of the step writes (weights) and must not touch
anything else. Every kernel that is launched this way waits, in every program; so when a kernel has ended, all before
it have. Outside a GPU both calls do nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None
    tl = None

__all__ = ["jit", "launch_options", "let_next_start", "runs_triton", "tl", "triton", "wait_for_previous"]

INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"
interpret_on_cpu = False  # tests of kernels set it; anything else on a CPU runs the references
_HOPPER = (9, 0)


def jit(function: Callable[..., Any]) -> Any:
    """triton.jit where there is Triton; otherwise the function as it is, which nothing calls."""
    return function if triton is None else triton.jit(function)


def jit_for_any(*names: str) -> Callable[[Callable[..., Any]], Any]:
    """The same; the integer arguments of these names differ from call to call, and no program is compiled anew for one
    that is 1 or divisible by 16."""
    return lambda function: function if triton is None else triton.jit(function, do_not_specialize=list(names))


def runs_triton(tensor: Tensor) -> bool:
    """Whether operations on `tensor` run Triton's kernels: on a GPU, or interpreted in tests."""
    return triton is not None and (tensor.is_cuda or (INTERPRETED and interpret_on_cpu))


@cache
def _dependent_launch(device_index: int) -> bool:
    return torch.cuda.get_device_capability(device_index) >= _HOPPER


def launch_options(tensor: Tensor, **options: int) -> dict[str, Any]:
    """Keyword arguments of a launch: `options` (num_warps, num_stages), PDL for the kernel, launch_pdl for Triton."""
    dependent = tensor.is_cuda and not INTERPRETED and _dependent_launch(tensor.device.index or 0)
    return {"PDL": dependent, **options, **({"launch_pdl": True} if dependent else {})}


@jit
def wait_for_previous(PDL: tl.constexpr):
    """Everything that earlier kernels wrote is visible afterwards."""
    if PDL:
        tl.extra.cuda.gdc_wait()


@jit
def let_next_start(PDL: tl.constexpr):
    """The next kernel may start once every program of this one has said so or ended."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
