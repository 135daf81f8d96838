"""Being here puts tests/ on sys.path, so that any test can say `from model.tiny import make_tiny`."""

import os

import paceline  # noqa: F401 - before torch: it says how long OpenMP threads spin

import torch  # isort: skip

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is first imported; only tests/kernels runs its kernels
