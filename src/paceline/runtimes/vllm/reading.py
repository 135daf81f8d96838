"""The arguments that Paceline and vLLM share, read with their types; where vLLM takes more values, all of vLLM's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

import msgspec

from paceline.arguments.fields import EngineArguments
from paceline.errors import PacelineError
from paceline.json_text import loads

_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    dict: "a mapping, or an object in JSON",
}
# vLLM knows more dtypes, quantisations and devices than Paceline's engine: it judges the values itself.
_WIDER: dict[str, Any] = dict.fromkeys(("dtype", "quantization", "kv_cache_dtype", "load_format", "device"), str)


def read_known(given: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    """Values of the wrong type are problems and are left out."""
    types = get_type_hints(EngineArguments) | _WIDER
    known: dict[str, Any] = {}
    for name, value in given.items():
        plain = _plain(value)
        if name == "speculative_config" and isinstance(plain, str):
            plain = _parsed(plain, problems)
            if plain is None:
                continue
        if name == "quantization" and str(plain).lower() == "none":  # as a word, where nothing can be written
            continue
        try:
            known[name] = msgspec.convert(plain, type=types[name])
        except msgspec.ValidationError:
            problems.append(f"{name}={value!r} must be {_in_words(types[name])}.")
    return known


def _in_words(kind: Any) -> str:
    """`int | None` as 'a whole number'."""
    plain = [part for part in (get_args(kind) or (kind,)) if part is not NoneType]
    return _WORDS.get(getattr(plain[0], "__origin__", plain[0]), "something else")


def _plain(value: Any) -> Any:
    """Paths and torch dtypes as the strings that name them."""
    if isinstance(value, Path):
        return str(value)
    if type(value).__module__ == "torch":
        return str(value).removeprefix("torch.")
    return value


def _parsed(text: str, problems: list[str]) -> Any:
    try:
        return loads(text)
    except (ValueError, PacelineError) as error:
        problems.append(f"speculative_config is not valid JSON: {str(error).rstrip('.')}.")
        return None
