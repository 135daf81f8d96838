"""Where commands write: answers to standard output, everything else to standard error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.console import Console
from rich.markup import escape
from rich.table import Table


def make_console(*, stderr: bool = False) -> Console:
    """Every console of the commands. Texts of users pass through them, so `:smile:` stays as it is written; markup is
    ours, and what is not ours is escaped where it is put in."""
    return Console(stderr=stderr, highlight=False, emoji=False)


console = make_console(stderr=True)


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
