"""Read a file of values, over a preset or alone: YAML -> Values, or one ConfigurationError with every problem."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from paceline.deploy.presets import preset_values
from paceline.deploy.secrecy import HIDDEN, masked, nothing_secret_in_errors
from paceline.deploy.strict_yaml import StrictLoader, in_words
from paceline.deploy.values import IN_WORDS, Runtime, Values
from paceline.errors import ConfigurationError, did_you_mean

_IMAGE_HINT = "name a version, such as registry.example.com/paceline:0.1.0, or a digest"


def load_values(
    file: Path | None, runtime: Runtime, preset: str | None = None, overrides: Mapping[str, Any] | None = None
) -> Values:
    """The preset, then the file, then `overrides` (from the command line); a mapping is merged key by key."""
    with nothing_secret_in_errors():
        return _load(file, runtime, preset, overrides or {})


def _load(file: Path | None, runtime: Runtime, preset: str | None, overrides: Mapping[str, Any]) -> Values:
    merged: dict[str, Any] = {}
    for layer in (preset_values(preset, runtime) if preset else {}, read_yaml(file) if file else {}, overrides):
        if "draft" in layer and layer["draft"] is None:
            merged = _without_draft(merged)
        merged = merge(merged, layer)
    if not merged:
        raise ConfigurationError("No values: give a file, or a preset with --preset.")
    origin = f"preset {preset}" if preset else "command line"
    return parse_values(merged, str(file or origin))


def _without_draft(values: Mapping[str, Any]) -> dict[str, Any]:
    """How a draft model drafts goes with it."""
    engine = values.get("engine")
    if not isinstance(engine, Mapping):
        return dict(values)
    return {**values, "engine": {name: value for name, value in engine.items() if name != "speculative_config"}}


def read_yaml(file: Path) -> dict[str, Any]:
    try:
        content = yaml.load(file.read_text(encoding="utf-8"), Loader=StrictLoader)
    except UnicodeDecodeError:
        raise ConfigurationError(f"Cannot read {file}: it is no text in UTF-8.") from None
    except OSError as error:
        raise ConfigurationError(f"Cannot read {file}: {error.strerror or error}.") from None
    except (yaml.YAMLError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{file} is {in_words(error)}") from None
    if not isinstance(content, dict):
        raise ConfigurationError(f"{file} holds no mapping; start from `paceline deploy values PRESET`.")
    return content


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` wins; mappings are merged, everything else is replaced."""
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def parse_values(content: Mapping[str, Any], where: str) -> Values:
    try:
        return Values.model_validate(content)
    except ValidationError as error:
        problems = [_in_words(problem, content) for problem in error.errors(include_url=False)]
    if len(problems) == 1:
        raise ConfigurationError(f"{where}: {problems[0]}")
    lines = "".join(f"\n  {number}. {problem}" for number, problem in enumerate(problems, 1))
    raise ConfigurationError(f"{where}: {len(problems)} problems{lines}")


def _in_words(problem: Mapping[str, Any], content: Mapping[str, Any]) -> str:
    path = [str(part) for part in problem["loc"]]
    name = ".".join(path)
    if problem["type"] == "extra_forbidden":
        known = _keys_at(path[:-1])
        guess = did_you_mean(path[-1], known) or f" There may be: {', '.join(sorted(known))}."
        return f"unknown key '{name}'.{guess}"
    if problem["type"] == "missing":
        return f"'{name}' is missing.{f' It must {_IMAGE_HINT}.' if name == 'image' else ''}"
    if path[-1] == "[key]":
        name = f"{'.'.join(path[:-2])}: the key"
    shown = _shown(path, problem["input"])
    message = str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "string_pattern_mismatch":
        kind = next((words for pattern, words in IN_WORDS.items() if pattern == problem["ctx"]["pattern"]), None)
        message = f"it must be {kind}" if kind else message
    if problem["type"] == "tuple_type":
        message = "give a list"
    if problem["type"] in ("dict_type", "model_type"):
        keys = ", ".join(_keys_at(path))
        message = f"give a mapping of {keys}" if keys else "give a mapping"
    if problem["type"] == "int_type" and str(problem["input"]).lstrip("-").isdecimal():
        message = f"{message}; write it without quotes"
    if problem["type"] == "string_type" and isinstance(problem["input"], int | float | datetime.date):
        message = f"{message}; write it in quotes{_in_quotes(path[-1], problem['input'], shown)}"
    return f"{name}={shown}: {message[:1].lower()}{message[1:]}."


def _shown(path: list[str], given: Any) -> str:
    if path[0] == "secrets" and not isinstance(given, dict):  # perhaps a secret itself
        return HIDDEN
    ((_, value),) = masked({path[-1]: given}).items()  # a name may say that it is one
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}… ({len(text)} characters)"


def _in_quotes(key: str, given: Any, shown: str) -> str:
    if HIDDEN in shown:
        return ""
    if isinstance(given, float):  # 0.20 has been read as 0.2
        return ", with all its digits: a number loses its last zeros"
    return f', such as "{given}"' if key.isdigit() else f', such as {key}: "{given}"'


def _keys_at(path: list[str]) -> list[str]:
    """The keys that the mapping at `path` may have."""
    kind: type[BaseModel] | None = Values
    for part in path:
        if kind is not None and not part.isdigit():  # the number of an entry in a list
            kind = _model_of(kind.model_fields[part].annotation)
    return list(kind.model_fields) if kind is not None else []


def _model_of(annotation: Any) -> type[BaseModel] | None:
    """The model in `Model`, `Model | None` or `tuple[Model, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_of(part)) is not None), None)
