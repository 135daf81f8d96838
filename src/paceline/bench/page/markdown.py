"""The report as Markdown: for a README or a ticket."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.bench.page.tables import Table, all_tables
from paceline.bench.page.words import provenance
from paceline.bench.serve.results import Results


def markdown(results: Results, picture: str | None = None) -> str:
    parts = ["# Benchmark of serving"]
    parts += [f"**{line}**" for line in results.warnings]
    if results.break_even:
        parts.append("\n".join(f"- {found.words}" for found in results.break_even))
    if picture is not None:
        parts.append(f"![Charts]({picture})")
    for table in all_tables(results):
        parts += [f"## {table.title}", _table(table), *([table.note] if table.note else [])]
    if results.notes:
        parts += ["## Notes", "\n".join(f"- {note}" for note in results.notes)]
    parts += ["## How this was measured", _table(Table("", ("", ""), provenance(results)))]
    return "\n\n".join(parts) + "\n"


def _table(table: Table) -> str:
    rule = ["---" if place < 2 else "---:" for place in range(len(table.headings))]
    return "\n".join(_row(cells) for cells in (table.headings, rule, *table.rows))


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
