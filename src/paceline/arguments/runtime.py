"""Which engine runs: Paceline's own, or vLLM."""

from __future__ import annotations

from typing import Any

from paceline.errors import ConfigurationError, did_you_mean

RUNTIMES = ("paceline", "vllm")


def check_runtime(runtime: str, **only_vllm: Any) -> None:
    """`only_vllm`: arguments by the names their user knows, which say something to runtime vllm alone."""
    if runtime not in RUNTIMES:
        raise ConfigurationError(f"runtime is paceline or vllm, not '{runtime}'.{did_you_mean(str(runtime), RUNTIMES)}")
    given = [name for name, value in only_vllm.items() if value]
    if runtime == "paceline" and given:
        raise ConfigurationError(f"{', '.join(given)}: only with runtime vllm.")
