"""Service level objectives: `ttft:500 tpot:50`, milliseconds a request must stay within to count as good."""

from __future__ import annotations

from collections.abc import Iterable

from paceline.errors import ConfigurationError, did_you_mean

NAMES = ("ttft", "tpot", "itl", "e2e")
_ALSO = {"e2el": "e2e"}  # vllm bench serve's word


def parse_objectives(words: Iterable[str]) -> dict[str, float]:
    """{'ttft': 500.0}; words may be joined by commas or blanks."""
    found: dict[str, float] = {}
    for word in " ".join(words).replace(",", " ").split():
        if len(word) > 80:
            raise ConfigurationError(f"--goodput {word[:40]}…: give milliseconds, such as ttft:500 tpot:50.")
        name, colon, value = word.partition(":")
        name = _ALSO.get(name, name)
        if name not in NAMES:
            raise ConfigurationError(f"--goodput {word}: known are {', '.join(NAMES)}.{did_you_mean(name, NAMES)}")
        try:
            limit = float(value)
        except ValueError:
            limit = -1.0
        if not colon or not 1e-3 <= limit <= 1e9:
            raise ConfigurationError(f"--goodput {word}: give milliseconds above 0, such as {name}:500.")
        if name in found:
            raise ConfigurationError(f"--goodput names {name} twice.")
        found[name] = limit
    return found
