"""The parts of a CPU's steps told apart: what rows cost, what tokens cost, and what is left over."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.engine.curves import Curve, Departures, rising

_MOST_ROW_SHARE = 0.25  # of a step of one row, that may be the row's own
_ROW_STEPS = 50
_PLACES = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)  # tokens a row
_LEAST = 1e-9  # seconds: a rate is taken of them

Cells = Mapping[tuple[int, int], float]  # rows, K -> seconds of the target's pass


def split_by_rows(verify: Cells) -> tuple[float, Curve]:
    """Seconds by (rows, K) as rows * row_seconds + curve(tokens): the row_seconds for which a curve that never falls
    fits best, each step's error counted as a share of it.

    Rows of attention and tokens of products have prices of their own. Single pairs of steps say little: the
    difference of two that take as long as each other is mostly noise.
    """
    most = _MOST_ROW_SHARE * verify[min(verify)]  # a pass over one row has little that is the row's own
    found = [_split(verify, most * part / _ROW_STEPS) for part in range(_ROW_STEPS + 1)]
    _, row_seconds, curve = min(found, key=lambda entry: entry[0])
    return row_seconds, Curve(curve.sizes, [max(value, _LEAST) for value in curve.values])


def _split(verify: Cells, row_seconds: float) -> tuple[float, float, Curve]:
    """Error, row_seconds, curve."""
    curve = Curve.through([(rows * (k + 1.0), value - rows * row_seconds) for (rows, k), value in verify.items()])
    errors = [(curve(rows * (k + 1.0)) + rows * row_seconds) / value - 1.0 for (rows, k), value in verify.items()]
    return sum(error * error for error in errors), row_seconds, curve


def departures(verify: Cells, row_seconds: float, curve: Curve) -> Departures:
    """Factors with which rows * row_seconds + curve(tokens) is what was measured, as far as that never falls with K.

    The sum alone was up to a seventh off where a pass over few rows is cheaper than over as many tokens of one: plain
    steps of eight rows looked as dear as with drafts. Between the measured K stand points that live steps may correct.
    """
    rows = sorted({rows for rows, _ in verify})
    measured = [_measured(verify, row_seconds, curve, count) for count in rows]
    found = Departures(
        [float(count) for count in rows], [list(line) for line in measured], [[*line.values()] for line in measured]
    )
    places = [sorted({*line, *(place for place in _PLACES if place < max(line))}) for line in found.per_row]
    factors = [[found.factor(count, count * place) for place in line] for count, line in zip(rows, places, strict=True)]
    return Departures(found.rows, places, factors)


def _measured(verify: Cells, row_seconds: float, curve: Curve, rows: int) -> dict[float, float]:
    """Tokens a row -> factor."""
    ks = sorted(k for other, k in verify if other == rows)
    seconds = rising([verify[rows, k] for k in ks])
    parts = [max(_LEAST, curve(rows * (k + 1.0)) + rows * row_seconds) for k in ks]
    return {k + 1.0: max(_LEAST, value) / part for k, value, part in zip(ks, seconds, parts, strict=True)}
