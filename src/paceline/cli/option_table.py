"""Writes deploy/command_options.json, the options of `paceline`'s commands, for those who may not import the commands:

    python -m paceline.cli.option_table

A test compares the file with what this would write. An option is what may follow it:

    {"takes": 0}                                 on or off
    {"takes": 1, "value": int | float | text}    with min, max, choices where there are any
    "repeats": true                              it may be given again
    "name"                                       of the argument that it sets, where that is not its own
"""

from __future__ import annotations

import inspect
import json
import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import typer

from paceline import deploy
from paceline.cli.app import app

FILE = Path(deploy.__file__).with_name("command_options.json")
_VALUES = {int: "int", float: "float"}


def render() -> str:
    lines = []
    for name, table in _commands(app, ()):
        options = ",\n".join(f"   {json.dumps(key)}: {json.dumps(value)}" for key, value in table["options"].items())
        head = f'"words": {json.dumps(table["words"])}, "options": {{'
        lines.append(
            f" {json.dumps(name)}: {{{head}\n{options}\n }}}}" if options else f" {json.dumps(name)}: {{{head}}}}}"
        )
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _commands(group: typer.Typer, path: tuple[str, ...]) -> list[tuple[str, dict[str, Any]]]:
    command: Any = typer.main.get_command(group)
    found = []
    for info in group.registered_commands:
        assert info.callback is not None
        name = info.name or info.callback.__name__.replace("_", "-")
        takes_anything = bool((info.context_settings or {}).get("ignore_unknown_options"))
        if not takes_anything:
            found.append((" ".join((*path, name)), _table(command.commands[name], info.callback)))
    for inner in group.registered_groups:
        assert inner.typer_instance is not None
        found += _commands(inner.typer_instance, (*path, str(inner.name)))
    return found


def _table(command: Any, callback: Any) -> dict[str, Any]:
    """`words`: how many may stand there without an option; null: any number."""
    parameters = inspect.signature(callback, eval_str=True).parameters
    options: dict[str, Any] = {}
    words: int | None = 0
    for param in command.params:
        if param.name == "help" or param.name not in parameters:
            continue
        kind = _kind(parameters[param.name])
        if param.param_type_name == "argument":
            words = None if words is None or kind.pop("repeats", False) else words + 1
            continue
        for spelling in (*param.opts, *param.secondary_opts):
            plain = spelling.lstrip("-").replace("-", "_")
            options[spelling] = kind if plain == param.name else {**kind, "name": param.name}
    return {"words": words, "options": options}


def _kind(parameter: inspect.Parameter) -> dict[str, Any]:
    hint, *more = get_args(parameter.annotation) or (parameter.annotation,)
    kind: dict[str, Any] = {"takes": 1}
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(part for part in get_args(hint) if part is not type(None))
    if get_origin(hint) is list:
        kind["repeats"] = True
        hint = get_args(hint)[0]
    if hint is bool:
        return {"takes": 0}
    kind["value"] = _VALUES.get(hint, "text")
    if get_origin(hint) is Literal:
        kind["choices"] = list(get_args(hint))
    kind |= {
        name: value for name in ("min", "max") for info in more if (value := getattr(info, name, None)) is not None
    }
    return kind


if __name__ == "__main__":
    FILE.write_text(render())
