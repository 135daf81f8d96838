"""Writes docs/configuration.md from the code: python docs/make_configuration.py

A test compares the page with what this would write.
"""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from pathlib import Path
from typing import Any, Literal

import typer

from paceline.arguments.fields import EngineArguments, SpeculativeArguments
from paceline.cli.app import app

PAGE = Path(__file__).with_name("configuration.md")
INTRODUCTION = """# Configuration

<!-- Written by docs/make_configuration.py from the code; change the code and run it again. -->

{text}
"""
_TEXT = (
    "A server is configured by the options of `paceline serve`; the Python API takes the same names as arguments of "
    "`LLM`, with underscores. What is resolved is printed once at the start. All problems are told in one message, "
    "before anything is loaded."
)
ENVIRONMENT = {
    "PACELINE_HOME": "Where models are kept. Default ~/.cache/paceline.",
    "PACELINE_API_KEYS": "API keys, separated by commas; not together with --api-key-file.",
    "HF_TOKEN": "For repositories of a model hub that ask for one.",
    "OMP_NUM_THREADS": "Threads of the engine on a CPU. Default: one a core.",
}


def render() -> str:
    parts = [INTRODUCTION.format(text=_TEXT), "## Options of paceline serve\n", *_serve(), *_python(), *_environment()]
    return "\n".join(parts)


def _serve() -> list[str]:
    command: Any = typer.main.get_command(app)
    panels: dict[str, list[Any]] = {}
    for param in command.commands["serve"].params:
        if not getattr(param, "hidden", False) and param.name != "help":
            panels.setdefault(getattr(param, "rich_help_panel", None) or "Address and model", []).append(param)
    lines = []
    for panel, params in panels.items():
        lines += [f"### {panel}\n", "| option | default | what it does |", "|---|---|---|"]
        lines += [_row(_spelling(param), _default(param), param.help or "") for param in params]
        lines.append("")
    return lines


def _spelling(param: Any) -> str:
    return param.name.upper() if param.param_type_name == "argument" else param.opts[-1]


def _default(param: Any) -> str:
    value = getattr(param.default, "value", param.default)
    return "" if value is None or value is False or value == [] or callable(value) else f"`{value}`"


def _python() -> list[str]:
    lines = [
        "## Arguments of LLM\n",
        "vLLM's names and defaults; `speculative_config` is an object with the second table.\n",
    ]
    for kind in (EngineArguments, SpeculativeArguments):
        name = "" if kind is EngineArguments else "speculative_config."
        lines += ["| argument | type | default |", "|---|---|---|"]
        hints = typing.get_type_hints(kind)
        for field in dataclasses.fields(kind):
            default = "required" if field.default is dataclasses.MISSING else f"`{field.default!r}`"
            lines.append(_row(name + field.name, _type(hints[field.name]), default))
        lines.append("")
    return lines


def _type(hint: Any) -> str:
    if typing.get_origin(hint) is Literal:
        return ", ".join(f"`{choice}`" for choice in typing.get_args(hint))
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join("none" if part is type(None) else _type(part) for part in typing.get_args(hint))
    return getattr(hint, "__name__", str(hint)) if typing.get_origin(hint) is None else str(hint).replace("typing.", "")


def _environment() -> list[str]:
    rows = [_row(name, text) for name, text in ENVIRONMENT.items()]
    return ["## Environment\n", "| variable | what it does |", "|---|---|", *rows, ""]


def _row(first: str, *rest: str) -> str:
    cells = [f"`{first}`", *(" ".join(cell.replace("|", "\\|").split()) for cell in rest)]
    return f"| {' | '.join(cells)} |"


def main() -> int:
    PAGE.write_text(render())
    return 0


if __name__ == "__main__":
    sys.exit(main())
