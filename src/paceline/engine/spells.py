"""Spells: for how many steps a row's draft goes on, once it has read what it missed while the row's text drafted.

Catching up is paid at once and counted as spread over the steps that follow. A row whose text repeats itself goes back
to its text after one or two, and must not reckon with as many as one that has no text to go back to.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.engine.goodput import HORIZON

_FIRST_GUESS = 8.0  # steps, of a row that has drafted from its text


@dataclass(slots=True)
class _Row:
    """Behind its text: spells of the draft model's, and the steps of all of them."""

    spells: float = 1.0
    steps: float = _FIRST_GUESS
    is_in_one: bool = False


class Spells:
    def __init__(self) -> None:
        self._rows: dict[int, _Row] = {}

    def expected(self, seq_id: int) -> float:
        """Steps; HORIZON for a row that has not drafted from its text."""
        row = self._rows.get(seq_id)
        return min(HORIZON, row.steps / row.spells) if row is not None else HORIZON

    def end_step(self, seq_id: int, *, by_text: bool, by_model: bool) -> None:
        """The row drafted so in a committed step."""
        if by_text:
            self._rows.setdefault(seq_id, _Row()).is_in_one = False
        elif by_model and (row := self._rows.get(seq_id)) is not None:
            row.spells += not row.is_in_one
            row.steps += 1.0
            row.is_in_one = True

    def forget(self, seq_id: int) -> None:
        self._rows.pop(seq_id, None)
