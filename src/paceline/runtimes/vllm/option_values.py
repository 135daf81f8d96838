"""Is this what vLLM's parser takes after an option? Told before it starts, by the kind of the option (kinds.py)."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from paceline.errors import PacelineError, did_you_mean
from paceline.json_text import loads
from paceline.runtimes.vllm.command import Option
from paceline.runtimes.vllm.kinds import Kind, Kinds, takes_no_value

LARGEST = 2**63 - 1  # what tensors and processes can pass on
_SEEDS = 2**32 - 1  # NumPy's
_SIZE = re.compile(r"\d+(\.\d+)?[kmgt]|\d+[KMGT]")
_SIZE_IN_JSON = re.compile(r'("(?:[^"\\]|\\.)*")|\b\d+(?:\.\d+)?[kKmMgGtT]\b')
# Refused below 1 by every version, where the bounds are not declared as well.
_AT_LEAST_ONE = frozenset({
    "tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size", "prefill-context-parallel-size",
    "decode-context-parallel-size", "nnodes", "api-server-count", "block-size",
})  # fmt: skip
# Names of which vLLM itself refuses all others; other lists of names are longer with plugins.
_CLOSED_NAMES = frozenset({"distributed-executor-backend"})
_PARSERS = {"tool-call-parser": "tool-parser-plugin"}
_BOUNDS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "ge": ("at least", operator.ge),
    "gt": ("more than", operator.gt),
    "le": ("at most", operator.le),
    "lt": ("less than", operator.lt),
}
_MOST_GPUS = 4096  # of one server; beyond, a mistake
_SHOWN = 12  # of a list of choices
_TRUTHS = frozenset({"true", "false", "t", "f", "yes", "no", "y", "n", "on", "off", "1", "0"})


def wrong_value(option: Option, kinds: Kinds) -> str | None:
    """What is wrong with an option's values, as the end of a sentence about it; None if nothing is known to be."""
    name, values = option
    if any("\0" in value for value in values):
        return "has a NUL character, which no command line can carry"
    if name.startswith("no-") and name[3:] in kinds:
        if kinds[name[3:]]["takes"] != "none":
            return "does not exist: only options that are on or off have a form with no-"
        return _no_value(values)
    name, *path = name.split(".")
    kind = kinds.get(name)
    if kind is None:
        return None
    if path:
        return _wrong_key(kind, path, values)
    if takes_no_value(kind):
        return _no_value(values)
    if kind["takes"] == "perhaps" and not values:
        return None
    if kind["takes"] != "many" and len(values) > 1:
        return f"takes one value, not {len(values)} ({' '.join(values)})"
    if not any(values):
        return "needs a value"
    return next((wrong for value in values if (wrong := _wrong_text(name, kind, value))), None)


def sentence(text: str) -> str:
    """With its full stop, where a guess has not ended it."""
    return text if text.endswith("?") else f"{text}."


def unknown_parser(options: list[Option], kinds: Kinds) -> Iterator[str]:
    """Names that only a plugin could bring, where none is given."""
    given = dict(options)
    for name, plugin in _PARSERS.items():
        names = kinds.get(name, {}).get("names")
        for value in given.get(name, ()):
            if names and value not in names and plugin not in given:
                yield f"--{name} {sentence(_not_one_of(value, names))} One of your own needs --{plugin}."


def wrong_json(kind: Kind, value: Any) -> str | None:
    """What is wrong with a value of JSON, as the end of a sentence; None is what a key without a value has."""
    if value is None:
        return None
    expected = kind.get("value", "any")
    if expected == "bool" and not (isinstance(value, bool) or str(value).lower() in _TRUTHS):
        return f"must be true or false, not {value!r}"
    if expected == "text" and not isinstance(value, str):
        return f"must be text, not {value!r}"
    if expected in ("int", "float"):
        return _wrong_number(kind, str(value) if isinstance(value, str | bool) else value)
    if "choices" in kind and value not in kind["choices"]:
        return _not_one_of(value, kind["choices"])
    return _too_large(value)


def _no_value(values: tuple[str, ...]) -> str | None:
    return f"is on or off and takes no value, not '{' '.join(values)}'" if values else None


def _wrong_key(kind: Kind, path: list[str], values: tuple[str, ...]) -> str | None:
    """--x.key value"""
    if kind.get("value") not in ("object", "json", "json-or-text"):
        return "takes no keys: give its value alone"
    if len(values) != 1:
        return f"takes one value, not {len(values)}"
    key = path[0].removesuffix("+")
    if "keys" in kind and key not in kind["keys"]:
        return _no_key(key, kind)
    if len(path) > 1 or path[0].endswith("+") or "keys" not in kind:
        return None
    value = values[0]
    wrong = wrong_json(kind["keys"][key], _plain(value))
    return wrong if wrong and wrong_json(kind["keys"][key], value) else None


def _plain(text: str) -> Any:
    """As vLLM reads it: JSON where it is, else the text."""
    try:
        return loads(whole_numbers(text))
    except (ValueError, PacelineError):
        return text


def _wrong_text(name: str, kind: Kind, text: str) -> str | None:
    if text == "None" and kind.get("optional"):
        return None
    match kind["value"]:
        case "int" | "float":
            wrong = _wrong_number(kind, text, name)
            return wrong or (_not_one_of(text, kind["choices"]) if not _is_choice(kind, text.strip()) else None)
        case "size" | "size-or-auto":
            return _wrong_size(kind, text)
        case "json" | "object":
            return _wrong_object(kind, text)
        case "lora":
            return _wrong_adapter(text)
        case "json-or-text" if re.fullmatch(r"\s*\{.*\}\s*", text, re.DOTALL):
            return _wrong_object(kind, text)
    if name in _CLOSED_NAMES and "names" in kind and text not in kind["names"] and "." not in text:
        return _not_one_of(text, kind["names"])
    word = text.lower().replace("-", "_") if kind["value"] == "any" else text
    return None if _is_choice(kind, word) else _not_one_of(text, kind["choices"])


def _is_choice(kind: Kind, word: str) -> bool:
    return "choices" not in kind or word in kind["choices"]


def _wrong_number(kind: Kind, value: Any, name: str = "") -> str | None:
    whole = kind["value"] == "int"
    try:
        number = int(value) if whole else float(value)
        exact = not isinstance(value, float) or not whole or value == number
    except (ValueError, TypeError, OverflowError):
        exact = False
    if not exact:
        return f"must be a {'whole ' if whole else ''}number, not {_short(repr(value))}"
    if not whole and not math.isfinite(number):
        return f"must be a number, not {value}"
    if whole and abs(number) > LARGEST:
        return f"must be at most {LARGEST}, not {_short(value)}"
    if name in _AT_LEAST_ONE and number < 1:
        return f"must be at least 1, not {number}"
    if name.endswith("parallel-size") and number > _MOST_GPUS:
        return f"must be a number of GPUs, at most {_MOST_GPUS}, not {_short(number)}"
    if name.endswith("-port") and not 1 <= number <= 65535:
        return f"must be between 1 and 65535, not {number}"
    if name == "seed" and not 0 <= number <= _SEEDS:
        return f"must be between 0 and {_SEEDS}, not {number}"
    return _out_of_bounds(kind, number)


def _out_of_bounds(kind: Kind, number: float) -> str | None:
    broken = [
        f"{words} {kind[name]}"
        for name, (words, holds) in _BOUNDS.items()
        if name in kind and not holds(number, kind[name])
    ]
    return f"must be {' and '.join(broken)}, not {number}" if broken else None


def _wrong_size(kind: Kind, text: str) -> str | None:
    word = text.strip()
    if kind["value"] == "size-or-auto" and word.lower() == "auto":
        return None
    if _SIZE.fullmatch(word):
        word = str(_size(word))
    try:
        int(word)
    except ValueError:
        return f"must be a whole number, or one with k, m or g such as 8k, not '{_short(text)}'"
    return _wrong_number({**kind, "value": "int"}, word)


def _size(word: str) -> int:
    power = "kmgt".index(word[-1].lower()) + 1
    return int(float(word[:-1]) * 1000**power) if word[-1].islower() else int(word[:-1]) * 1024**power


def whole_numbers(text: str) -> str:
    """JSON with 80m or 1k in it, which vLLM takes, as JSON. Half a thousand with a K stays, for JSON to refuse."""
    return _SIZE_IN_JSON.sub(lambda found: str(_size(found[0])) if _SIZE.fullmatch(found[0]) else found[0], text)


def _wrong_object(kind: Kind, text: str) -> str | None:
    try:
        value = loads(whole_numbers(text) if kind["value"] == "object" else text)
    except (ValueError, PacelineError) as error:
        return f"must be JSON, not {_short(text)} ({str(error).rstrip('.')})"
    if kind["value"] == "object" and not isinstance(value, dict):
        return f"must be a JSON object, not {_short(text)}"
    if isinstance(value, dict) and "keys" in kind:
        for key, of_key in value.items():
            if key not in kind["keys"]:
                return _no_key(key, kind)
            if wrong := wrong_json(kind["keys"][key], of_key):
                return f"has a key '{key}' that {wrong}"
    return _too_large(value)


def _wrong_adapter(text: str) -> str | None:
    if "=" in text and "," not in text:
        return None
    try:
        value = loads(text)
    except (ValueError, PacelineError):
        value = None
    has_both = isinstance(value, dict) and {"name", "path"} <= value.keys()
    return None if has_both else f"must be name=path, or a JSON object with name and path, not {_short(text)}"


def _no_key(key: str, kind: Kind) -> str:
    guess = did_you_mean(key, kind["keys"])
    return f"has no key '{key}'{'.' * bool(guess)}{guess}"


def _not_one_of(value: Any, choices: Any) -> str:
    shown, more = ", ".join(choices[:_SHOWN]), ", …" if len(choices) > _SHOWN else ""
    guess = did_you_mean(str(value), choices)
    return f"must be one of {shown}{more}, not {value!r}{'.' * bool(guess)}{guess}"


def _too_large(value: Any) -> str | None:
    if isinstance(value, int) and abs(value) > LARGEST:
        return f"has a number beyond {LARGEST}: {_short(value)}"
    inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return next((wrong for part in inside if (wrong := _too_large(part))), None)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
