"""Which rows of a step draft from their own text, and how much every row drafts then.

A lookup costs no pass of the draft model, so a text may serve even where the draft model is as sure: if all rows of a
step draft from their texts it makes no pass at all. Which rows should is weighed for the step as a whole, by expected
tokens a second: nobody, those whose text is surer than their draft, or all that have a match.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace

from paceline.engine.goodput import Choice, DraftingRow, best_ragged
from paceline.engine.step_costs import RaggedCosts

Rows = frozenset[int]  # by their index


def with_texts(
    rows: Seq[DraftingRow],
    survivals: Seq[Seq[float]],
    drafted: Choice,
    costs: RaggedCosts,
    *,
    others: int = 0,
    probes: Mapping[int, int] | None = None,
    rests: bool = False,
) -> tuple[Choice, Rows]:
    """The best choice, and the rows that draft from their text in it.

    `drafted`: the choice without texts, survivals [row][j-1] what it reckoned with. `probes`: drafts of rows, by
    index, that the draft model is to make whatever they cost. `rests`: it makes no others.
    """
    probes = probes or {}
    must = frozenset(index for index, row in enumerate(rows) if row.text and row.is_fixed)
    able = frozenset(index for index, row in enumerate(rows) if row.text and index not in probes)
    surer = frozenset(index for index in able if sum(rows[index].text) > sum(survivals[index][: drafted.counts[index]]))
    best, chosen = (Choice(drafted.counts, 0.0, 1.0) if must else drafted), Rows()
    for texts in filter(None, dict.fromkeys((must, surer | must, able))):
        now = [_as_planned(index, row, texts, probes, rests=rests) for index, row in enumerate(rows)]
        chances = [row.text if row.by_text else survivals[index] for index, row in enumerate(now)]
        found = best_ragged(now, chances, costs, others=others)
        if (found.rate, len(texts)) > (best.rate, len(chosen)):
            best, chosen = found, texts
    return best, frozenset(index for index in chosen if best.counts[index])


def _as_planned(index: int, row: DraftingRow, texts: Rows, probes: Mapping[int, int], *, rests: bool) -> DraftingRow:
    if index in texts:
        return replace(row, most=len(row.text), lag=0, by_text=True)
    if index in probes:
        return replace(row, most=probes[index], is_fixed=True)
    return replace(row, most=0) if rests and not row.is_fixed else row
