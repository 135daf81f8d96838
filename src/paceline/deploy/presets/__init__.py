"""Values to start from. A preset is NAME.yaml beside this file; NAME.vllm.yaml is laid over it for vLLM."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import yaml

from paceline.deploy.values import Runtime
from paceline.errors import ConfigurationError, did_you_mean


def preset_names() -> tuple[str, ...]:
    names = (entry.name for entry in files(__name__).iterdir() if entry.name.endswith(".yaml"))
    return tuple(sorted(name.removesuffix(".yaml") for name in names if name.count(".") == 1))


def preset_text(name: str, runtime: Runtime = "paceline") -> str:
    """The file as it is, with its comments; for vLLM its overlay follows in the same text as a second document."""
    folder = files(__name__)
    if name not in preset_names():
        raise ConfigurationError(
            f"No preset '{name}'.{did_you_mean(name, preset_names())} There are: {', '.join(preset_names())}."
        )
    overlay = folder / f"{name}.{runtime}.yaml"
    text = (folder / f"{name}.yaml").read_text(encoding="utf-8")
    return f"{text}---\n{overlay.read_text(encoding='utf-8')}" if overlay.is_file() else text


def preset_values(name: str, runtime: Runtime) -> dict[str, Any]:
    from paceline.deploy.values_file import merge

    merged: dict[str, Any] = {}
    for document in yaml.safe_load_all(preset_text(name, runtime)):
        merged = _without_nulls(merge(merged, document))
    return merged


def _without_nulls(values: dict[str, Any]) -> dict[str, Any]:
    """An overlay takes a key away by null."""
    return {
        key: _without_nulls(value) if isinstance(value, dict) else value
        for key, value in values.items()
        if value is not None
    }
