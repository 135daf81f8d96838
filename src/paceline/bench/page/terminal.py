"""The tables that a terminal has room for."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table as RichTable

from paceline.bench.page.tables import Table, comparison, overview
from paceline.bench.serve.results import Results


def tables(results: Results) -> list[RichTable]:
    compared = comparison(results)
    return [_rich(table) for table in (overview(results), compared) if table is not None]


def _rich(table: Table) -> RichTable:
    found = RichTable(title=table.title, caption=escape(table.note) or None, caption_justify="left")
    for place, heading in enumerate(table.headings):
        found.add_column(escape(heading), justify="left" if place < 2 else "right")
    for row in table.rows:
        found.add_row(*map(escape, row))
    return found
