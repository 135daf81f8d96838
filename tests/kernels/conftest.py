"""Kernels run in Triton's interpreter where there is no GPU.

The interpreter's own conversion to 8-bit floats loses the carry of rounding up (1.95 becomes 1.0) and the one to
bfloat16 does not round; both are done by torch here, as the hardware does them: to nearest, ties to even.
"""

import numpy as np
import pytest
import torch

from paceline.kernels import triton_support


@pytest.fixture(scope="module", autouse=True)
def kernels_are_run():
    """On the GPU, or interpreted with the rounding of the hardware."""
    if triton_support.triton is None:
        pytest.skip("Triton is not installed: pip install -e '.[gpu]'")
    if torch.cuda.is_available():
        yield
        return
    from triton.runtime import interpreter

    tl = triton_support.tl

    types = {tl.float32: torch.float32, tl.bfloat16: torch.bfloat16, tl.float16: torch.float16,
             tl.float8e4nv: torch.float8_e4m3fn}  # fmt: skip
    plain = {1: (torch.uint8, np.uint8), 2: (torch.int16, np.uint16), 4: (torch.int32, np.uint32)}
    own = interpreter._convert_float

    def convert(values, from_type, to_type, rounding):
        if from_type not in types or to_type not in types:
            return own(values, from_type, to_type, rounding)
        bits = torch.from_numpy(np.ascontiguousarray(values).view(np.uint8).copy())
        result = bits.view(types[from_type]).to(types[to_type])
        as_plain, as_numpy = plain[result.element_size()]
        return result.view(as_plain).numpy().view(as_numpy).reshape(values.shape)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_convert_float", convert)
        patch.setattr(triton_support, "interpret_on_cpu", True)
        yield


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
