"""A tiny pair whose laws overlap well and differ, and a verification of it that takes seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from model.pairs import make_pair, prompts

from paceline.verify.runner import Options

PROMPTS = prompts(4, seed=3, low=48, high=48)


def make_verifiable(folder: Path) -> tuple[str, str]:
    target, draft = make_pair(folder, noise=0.05)
    return str(target), str(draft)


def options(pair: tuple[str, str], **changes: Any) -> Options:
    engine = {"skip_tokenizer_init": True, "block_size": 4, "kv_cache_memory_bytes": 8_000_000}
    given: dict[str, Any] = {
        "model": pair[0], "draft": pair[1], "numbers": (2,), "engine": engine, "prompts": PROMPTS, "samples": 128,
        "parity_tokens": 6, "quick": True, "methods": ("rejection",), "parts": ("law",),
    }  # fmt: skip
    return Options(**given | changes)
