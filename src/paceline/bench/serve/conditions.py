"""What differs between runs that are put beside each other: of two runs under different conditions neither's gain is
the other's, and what lies between them is not one arm's doing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.bench.serve.results import Results

# What decides the figures of a run, by its name in `options`; what other tools do not say is not compared.
_OPTIONS = {
    "prompts": "prompts", "input_len": "made-up prompts of tokens", "num_prompts": "prompts a case",
    "max_tokens": "max_tokens", "temperature": "temperature", "seeds": "seeds", "endpoint": "endpoint",
    "ignore_eos": "ends ignored", "all_turns": "all turns", "extra_body": "further fields",
    "warmup": "warm-up requests", "fresh_prompts": "prompts kept out of the prefix cache",
}  # fmt: skip
_LONGEST = 60


def differences(parts: Sequence[Results]) -> str:
    """One line that names all of it, run by run; empty where nothing is known to differ."""
    found = []
    for name, values in _known(parts).items():
        if len(set(values)) > 1 and "" not in values:
            found.append(f"{name} ({' / '.join(_short(value) for value in values)})")
    return f"THE RUNS DIFFER, in the order given: {', '.join(found)}." if found else ""


def _known(parts: Sequence[Results]) -> dict[str, list[str]]:
    """Name -> a value of each run; '' where it is not said."""
    found = {
        words: ["" if name not in part.options else _option(part.options[name]) for part in parts]
        for name, words in _OPTIONS.items()
    }
    found["tool"] = [part.tool for part in parts]
    found["model"] = [_all(arm.model for arm in part.arms) for part in parts]
    found["server"] = [_all(arm.server for arm in part.arms) for part in parts]
    found["hardware"] = [_all(arm.hardware for arm in part.arms) for part in parts]
    found["GPUs"] = [_all("" if arm.num_gpus is None else str(arm.num_gpus) for arm in part.arms) for part in parts]
    found["tokens counted by"] = [_all(arm.counting for arm in part.arms) for part in parts]
    found["day"] = [_day(str(part.environment.get("date") or "")) for part in parts]
    return found


def _option(value: Any) -> str:
    return "none" if value in (None, "", [], {}) else str(value)


def _all(values: Any) -> str:
    return ", ".join(dict.fromkeys(value for value in values if value))


def _day(date: str) -> str:
    """2026-11-30, also of vllm bench serve's 20261130-120000."""
    compact = date[:8]
    return f"{compact[:4]}-{compact[4:6]}-{compact[6:]}" if len(compact) == 8 and compact.isdigit() else date[:10]


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
