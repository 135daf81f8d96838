"""Arguments of `paceline serve`, `paceline deploy doctor` and Paceline's other commands in a container.

What they take is in deploy/command_options.json, made from the command line's own definition: a folder of manifests is
checked without it.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from paceline.deploy.check.findings import Finding, Json, error, warning
from paceline.deploy.check.pod_specs import command_words
from paceline.deploy.check.shell_words import as_kubernetes_passes
from paceline.errors import did_you_mean

_OPEN = "$("
_HELP = ("--help", "--version")
Table = Mapping[str, Any]
Given = list[tuple[str, str | None]]  # option as it is written; its value, None where it takes none


def paceline_findings(place: str, container: Json) -> Iterator[Finding]:
    variables = {str(v.get("name")): str(v["value"]) for v in container.get("env") or [] if v.get("value") is not None}
    words = [as_kubernetes_passes(word, variables) for word in command_words(container)]
    if not words or words[0].rsplit("/", 1)[-1] != "paceline":
        return
    path = f"{place}.args" if container.get("args") else f"{place}.command"
    name = _command(words[1:])
    if name is None:
        yield from _no_command(path, words[1:])
        return
    yield from _of_command(path, name, words[1 + len(name.split()) :], container)


@cache
def command_tables() -> Mapping[str, Table]:
    tables: dict[str, Table] = json.loads((files("paceline.deploy") / "command_options.json").read_text())
    return tables


def _command(words: Sequence[str]) -> str | None:
    return next((name for length in (2, 1) if (name := " ".join(words[:length])) in command_tables()), None)


def _no_command(path: str, words: Sequence[str]) -> Iterator[Finding]:
    first = {name.split()[0] for name in command_tables()} | {"demo"}  # which takes what it likes
    if words[:1] and words[0] in first - {"deploy", "models", "bench"}:
        return
    if words and not any(word in _HELP or _OPEN in word for word in words[:2]):
        named = " ".join(words[:2] if words[0] in first else words[:1])
        guess = did_you_mean(named, [*command_tables(), *first])
        yield error(path, f"'paceline {named}': there is no such command.{guess}")


def _of_command(path: str, name: str, words: Sequence[str], container: Json) -> Iterator[Finding]:
    table = command_tables()[name]
    given: Given = []
    alone: list[str] = []
    for message in _read(words, name, table, given, alone):
        yield error(path, message)
    for message in _values(given, table):
        yield error(path, message)
    counts = Counter(option for option, _ in given)
    for option, times in counts.items():
        if times > 1 and not table["options"][option].get("repeats"):
            yield warning(path, f"{option} is given {times} times, and the last one counts: give it once.")
    if name == "serve":
        yield from (error(path, message) for message in _engine(given, alone, table, container))
    if name == "deploy doctor":
        yield from (error(path, message) for message in _doctor(given))


def _read(words: Sequence[str], name: str, table: Table, given: Given, alone: list[str]) -> Iterator[str]:
    """As click does: an option takes the next word, whatever that is."""
    rest = iter(words)
    after_unknown = False  # the value of it, most likely
    for word in rest:
        option, equals, value = word.partition("=")
        if not word.startswith("-") or len(word) == 1:
            alone += [] if after_unknown else [word]
            after_unknown = False
        elif option not in table["options"]:
            if option not in _HELP and _OPEN not in option:
                yield _unknown(word, option, name, table)
            after_unknown = not equals and " " not in option
        elif table["options"][option]["takes"] == 0:
            given.append((option, None))
            if equals:
                yield f"{option} is on or off and takes no value."
        else:
            text = value if equals else next(rest, None)
            if text is None:
                yield f"{option} needs a value."
            else:
                given.append((option, text))
    most = table["words"]
    for word in alone[most:] if most is not None and not any(_OPEN in word for word in alone) else []:
        yield f"{word[:60]!r} belongs to no option of `paceline {name}`."


def _unknown(word: str, option: str, name: str, table: Table) -> str:
    head = option.split(" ")[0]
    if " " in option and head in table["options"]:
        return f"{word[:60]!r} is one word, with the space: make {head} and its value two of them."
    return f"`paceline {name}` has no option {option}.{did_you_mean(option, table['options'])}"


def _values(given: Given, table: Table) -> Iterator[str]:
    for option, text in given:
        kind = table["options"][option]
        if text is None or _OPEN in text:
            continue
        if kind["value"] in ("int", "float"):
            number = _number(text, kind["value"])
            if number is None:
                whole = "whole " if kind["value"] == "int" else ""
                yield f"{option} must be a {whole}number, not {text[:60]!r}."
            elif not kind.get("min", -math.inf) <= number <= kind.get("max", math.inf):
                bounds = [f"at {end} {kind[key]}" for key, end in (("min", "least"), ("max", "most")) if key in kind]
                yield f"{option} must be {' and '.join(bounds)}, not {text}."
        elif "choices" in kind and text not in kind["choices"]:
            guess = did_you_mean(text, kind["choices"])
            yield f"{option} must be one of {', '.join(kind['choices'])}, not {text[:60]!r}.{guess}"


def _number(text: str, kind: str) -> float | None:
    try:
        number = int(text) if kind == "int" else float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _engine(given: Given, alone: list[str], table: Table, container: Json) -> Iterator[str]:
    """The engine's own rules, on the machine that the container asks for."""
    from paceline.arguments import EngineArguments, Machine
    from paceline.arguments.fields import LEGACY, argument_names
    from paceline.arguments.foreign import FOREIGN
    from paceline.arguments.resolve import check_without_models

    options = dict(given)
    if options.get("--runtime", "paceline") == "vllm":
        return
    known = {*argument_names(), *EngineArguments.__dataclass_fields__, *FOREIGN}
    arguments: dict[str, Any] = {"model": (alone or ["smollm2-135m-instruct"])[0]}
    for option, text in options.items():
        name = table["options"][option].get("name", option[2:].replace("-", "_"))
        if name == "no_prefix_caching":
            arguments["enable_prefix_caching"] = False
        elif name in known and (text is None or _OPEN not in text):
            is_old = name in FOREIGN or name in LEGACY.keys() - {"speculative_model"}
            value = _converted(text, table["options"][option], is_old)
            if value is None:
                return  # told above
            arguments[name] = value
    speculative = arguments.get("speculative_config")
    if isinstance(speculative, str):
        try:
            arguments["speculative_config"] = json.loads(speculative)
        except ValueError:
            return  # told by server_commands.py
    machine = Machine(num_gpus=_gpus(arguments, container), cpu_dtype=lambda: "float32")
    yield from check_without_models(arguments, machine)


def _converted(text: str | None, kind: Table, is_old: bool) -> Any:
    """vLLM's older options are declared as texts, and read as JSON where they are."""
    if text is None:
        return True
    if is_old and kind["value"] == "text":
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text if kind["value"] == "text" else _number(text, kind["value"])


def _gpus(arguments: Mapping[str, Any], container: Json) -> int:
    """As many as are asked for; how many there must be is another rule's."""
    if arguments.get("device") == "cpu":
        return 0
    limits = (container.get("resources") or {}).get("limits") or {}
    asked = [int(str(count)) for name, count in limits.items() if "gpu" in name and str(count).isdecimal()]
    size = arguments.get("tensor_parallel_size", 1)
    return max(1, *asked, size if isinstance(size, int) else 1)


def _doctor(given: Given) -> Iterator[str]:
    from paceline.deploy.doctor import CHECKS

    for option, text in given:
        if option == "--only" and text not in CHECKS and _OPEN not in str(text):
            guess = did_you_mean(str(text), CHECKS)
            yield f"--only {str(text)[:60]}: no such check.{guess} There are: {', '.join(CHECKS)}."
    if ("--only", "model") in given and not any(option == "--model" for option, _ in given):
        yield "--only model needs a --model to look at."
