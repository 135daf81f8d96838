"""Figures as text, each with its unit; and where, when and how they were measured."""

from __future__ import annotations

from typing import Any

from paceline.bench.environment import processor_in_words
from paceline.bench.serve.intervals import Estimate
from paceline.bench.serve.results import Results

NOTHING = "-"


def number(value: float | None, digits: int = 3) -> str:
    """Three significant digits, no exponent."""
    if value is None:
        return NOTHING
    if value == 0:
        return "0"
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])  # of the rounded value
    return f"{value:,.{max(0, digits - 1 - exponent)}f}"


def with_interval(value: Estimate | None, unit: str = "") -> str:
    if value is None:
        return NOTHING
    if value.low is None or value.high is None:
        return f"{number(value.value)}{unit}"
    return f"{number(value.value)}{unit} ({number(value.low)} to {number(value.high)})"


def provenance(results: Results) -> list[tuple[str, str]]:
    """What every figure of the report holds for."""
    rows: list[tuple[str, str]] = []
    for source in results.origins:
        environment = source.environment
        versions = environment.get("versions") or {}
        known = {
            "measured": ", ".join(source.arms),
            "tool": source.tool,
            "command": environment.get("command"),
            "date": environment.get("date"),
            "commit": environment.get("commit"),
            "client": _client(environment.get("hardware")),
            "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
            "requests": requests_in_words(source.options),
        }
        rows += [(name, str(value)) for name, value in known.items() if value]
    return rows + [(f"server of {arm.name}", _server(arm)) for arm in results.arms]


def _client(hardware: Any) -> str:
    if not isinstance(hardware, dict):
        return ""
    return processor_in_words(hardware.get("cpu", "unknown processor"), hardware.get("cpu_cores"))


def _server(arm: Any) -> str:
    parts = [arm.server or "unknown server", arm.model, arm.url, f"on {arm.hardware or 'hardware not stated'}"]
    if arm.num_gpus:
        parts.append(f"{arm.num_gpus} GPUs")
    if arm.price_per_hour:
        parts.append(f"${arm.price_per_hour:g} an hour")
    if arm.counting:
        parts.append(f"tokens counted by {arm.counting}")
    return ", ".join(part for part in parts if part)


def requests_in_words(options: dict[str, Any]) -> str:
    names = {
        "prompts": "prompts from", "input_len": "made-up prompts of tokens", "max_tokens": "at most tokens an answer",
        "temperature": "temperature", "seeds": "seeds", "warmup": "warm-up requests", "endpoint": "endpoint",
        "ignore_eos": "ends ignored", "all_turns": "all turns", "extra_body": "further fields",
        "goodput": "objectives in ms",
    }  # fmt: skip
    known = [(words, options.get(name)) for name, words in names.items()]
    return ", ".join(f"{words} {value}" for words, value in known if value not in (None, False, {}, []))


def where_and_when(results: Results) -> str:
    """The line under every chart."""
    hardware = dict.fromkeys(arm.hardware or "hardware not stated" for arm in results.arms)
    dates = dict.fromkeys(str(source.environment.get("date", "date not stated")) for source in results.origins)
    return f"{'; '.join(hardware)} · {'; '.join(dates)}"
