"""The hardware in words: enough to tell whether two measurements may be compared."""

from __future__ import annotations

import platform
from pathlib import Path

import torch


def hardware_name(device: torch.device) -> str:
    """The GPU, or the processor and how many of its threads are used."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}"
    return f"{processor_name()}, {torch.get_num_threads()} threads"


def processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
