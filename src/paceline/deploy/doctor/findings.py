"""What is asked of the machine, and what was found."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Runtime = Literal["paceline", "vllm"]
Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Wanted:
    models: tuple[Path, ...] = ()
    runtime: Runtime = "paceline"  # what will serve them
    num_gpus: int | None = None  # None: whatever is there
    shm_bytes: int = 16 * 2**30  # asked for where there are several GPUs
    port: int | None = 8000
    host: str = "0.0.0.0"


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    level: Level
    message: str  # what is so
    action: str = ""  # what to do about it


def ok(check: str, message: str) -> Finding:
    return Finding(check, "ok", message)


def warning(check: str, message: str, action: str) -> Finding:
    return Finding(check, "warning", message, action)


def error(check: str, message: str, action: str) -> Finding:
    return Finding(check, "error", message, action)
