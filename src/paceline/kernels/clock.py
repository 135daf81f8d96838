"""The device's own clock, read between the parts of a captured step.

Events inside a graph are overwritten as soon as the next step starts; a time stamp in the step's result is not.
"""

from __future__ import annotations

import time

from torch import Tensor

from paceline.kernels.triton_support import jit, tl


def stamp(times: Tensor, index: int) -> None:
    """times [n] int64: element `index` = nanoseconds on a clock of the device (on a CPU: the host's)."""
    if times.is_cuda:
        _stamp_kernel[(1,)](times, index, num_warps=1)
    else:
        times[index] = time.perf_counter_ns()


@jit
def _stamp_kernel(times_ptr, index):
    tl.store(times_ptr + index, tl.extra.cuda.globaltimer())
