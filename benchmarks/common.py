"""What every benchmark needs: prompts, the machine in words, and a place for results."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"

# Used where no file of prompts is given; the figures in results/ name the file they come from.
BUILTIN_PROMPTS = [
    "Explain why the sky is blue to a ten-year-old.",
    "Write a short poem about a lighthouse in a storm.",
    "List five uses for an old newspaper and say which is best.",
    "Write a Python function that returns the n-th Fibonacci number.",
    "What is the difference between weather and climate?",
    "A train leaves at 9:40 and arrives at 13:05. How long is the journey?",
    "Summarise the plot of Romeo and Juliet in three sentences.",
    "Give me a recipe for pancakes with the amounts in grams.",
]


def load_prompts(path: Path | None) -> list[str]:
    """First turns of a JSONL file with `turns` (Spec-Bench's form), or the built-in ones."""
    if path is None:
        return BUILTIN_PROMPTS
    return [json.loads(line)["turns"][0] for line in path.read_text().splitlines() if line.strip()]


def machine() -> dict[str, Any]:
    import torch

    model = next((line.split(":")[1].strip() for line in _cpuinfo() if line.startswith("model name")), "unknown")
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        **({"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}),
    }


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def commit() -> str:
    run = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    dirty = subprocess.run(
        ["git", "status", "--porcelain", "--", "src"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return run.stdout.strip() + ("+changes" if dirty.stdout.strip() else "")


def record(name: str, results: dict[str, Any]) -> Path:
    """Write results with the command, the commit, the hardware and the date; returns where."""
    document = {
        "benchmark": name,
        "command": " ".join(["python", *sys.argv]),
        "commit": commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        **results,
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path.relative_to(ROOT)
