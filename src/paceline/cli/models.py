"""paceline models."""

from __future__ import annotations

from pathlib import Path

from rich.markup import escape
from rich.table import Table

from paceline import hub
from paceline.cli.console import make_console, say


def show_models() -> None:
    present = hub.list_models()
    table = Table()
    for heading in ("name", "size"):
        table.add_column(heading, no_wrap=True)
    for heading in ("dtype", "from", "directory"):
        table.add_column(heading, overflow="fold")
    for model in present:
        cells = (model.name, f"{model.size_bytes / 1e6:,.0f} MB", model.dtype, model.origin, str(model.path))
        table.add_row(*map(escape, cells))
    make_console().print(table if present else "No models here yet.")
    missing = [name for name in hub.known_models() if name not in {model.name for model in present}]
    if missing:
        say(f"Not here yet: {', '.join(missing)}. Bring one with: paceline models pull {missing[0]}")


def pull_model(name: str, to: Path | None) -> None:
    path = hub.pull(name, say) if to is None else hub.pull_to(name, to, say)
    make_console().print(f"{name}: {path}", markup=False, soft_wrap=True)


def remove_model(name: str) -> None:
    make_console().print(f"Removed {hub.remove(name)}", markup=False, soft_wrap=True)
