"""Where commands write: answers to standard output, everything else to standard error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.console import Console
from rich.markup import escape
from rich.table import Table

console = Console(stderr=True, highlight=False)


def say(line: str) -> None:
    console.print(f"[dim]{escape(line)}[/]", soft_wrap=True)


def show_notes(notes: Iterable[str]) -> None:
    for note in notes:
        console.print(f"[yellow]Note:[/] {escape(note)}", soft_wrap=True)


def show_configuration(description: Mapping[str, str]) -> None:
    """The resolved configuration, in one table, once (p41)."""
    table = Table("resolved configuration", "")
    table.columns[1].overflow = "fold"
    for setting, value in description.items():
        table.add_row(escape(setting), escape(value))
    console.print(table)
