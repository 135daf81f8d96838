"""What the machine can do, as far as a configuration depends on it. A value, so that tests can ask about others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from paceline.config import Dtype

_GPU_DEVICES = ("nvidia*", "nvhost*", "dxg", "kfd")  # of NVIDIA, Jetson, WSL, AMD; under /dev
_NATIVE_BF16 = {"avx512_bf16", "amx_bf16"}  # as /proc/cpuinfo spells them; bf16 on Arm


def _best_cpu_dtype() -> Dtype:
    """bfloat16 where the CPU multiplies it natively, which halves the memory traffic; elsewhere it is slower."""
    try:
        words = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:  # not Linux
        return "float32"
    return "bfloat16" if words & (_NATIVE_BF16 | {"bf16"}) else "float32"


@dataclass(frozen=True, slots=True)
class Machine:
    num_gpus: int = 0
    cpu_dtype: Callable[[], Dtype] = _best_cpu_dtype  # asked only when dtype is "auto" on a CPU

    @classmethod
    def detect(cls) -> Machine:
        if not any(any(Path("/dev").glob(pattern)) for pattern in _GPU_DEVICES):
            return cls()  # without importing torch: mistakes on the command line are told at once
        import torch

        return cls(num_gpus=torch.cuda.device_count() if torch.cuda.is_available() else 0)

    @property
    def default_device(self) -> Literal["cpu", "cuda"]:
        return "cuda" if self.num_gpus else "cpu"

    @property
    def gpus_in_words(self) -> str:
        if self.num_gpus == 0:
            return "this machine has no GPU"
        return f"this machine has {self.num_gpus} GPU{'s' if self.num_gpus > 1 else ''}"
