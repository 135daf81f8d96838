"""What a measurement is worth nothing without: the command, the commit, the hardware, the date and the versions."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = ("paceline", "torch", "triton")


def environment(device: str | None) -> dict[str, Any]:
    """`device` None: nothing is computed here, so torch is not asked."""
    return {
        "command": shlex.join(["paceline", *sys.argv[1:]]),
        "commit": _commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": _hardware(device),
        "versions": {"python": platform.python_version(), **_versions()},
    }


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _commit() -> str | None:
    """Of the source that runs, with '+changes' where it differs; None if it is not in a git repository."""
    source = Path(__file__).resolve().parent.parent
    head = _git(source, "rev-parse", "HEAD")
    if head is None:
        return None
    return head + ("+changes" if _git(source, "status", "--porcelain", "--", ".") else "")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        run = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return run.stdout.strip() if run.returncode == 0 else None


def _hardware(device: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {"cpu": _cpu_name(), "cpu_cores": os.cpu_count()}
    if device is None:
        return found
    import torch

    found["torch_threads"] = torch.get_num_threads()
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        found |= {
            "gpu": properties.name,
            "num_gpus": torch.cuda.device_count(),
            "gpu_memory_bytes": properties.total_memory,
            "cuda": torch.version.cuda,
        }
    return found


def local_hardware() -> str:
    """This machine in words: its GPUs if nvidia-smi lists any, and its processor."""
    names = _gpu_names()
    cards = [f"{names.count(name)} x {name}" for name in dict.fromkeys(names)]
    return ", ".join([*cards, processor_in_words(_cpu_name(), os.cpu_count())])


def processor_in_words(name: str, cores: int | None) -> str:
    """'AMD EPYC 9654, 2 cores': a number in front of a processor's name would be read as sockets."""
    return f"{name}, {cores or '?'} core" + ("" if cores == 1 else "s")


def _gpu_names() -> list[str]:
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in run.stdout.splitlines() if line.strip()] if run.returncode == 0 else []


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine() or "unknown processor"
