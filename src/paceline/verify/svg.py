"""Two kinds of plot as inline SVG: the page needs no library and no network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

_WIDTH, _LEFT, _ROW, _AXIS = 760, 330, 17, 22


@dataclass(frozen=True, slots=True)
class Interval:
    """One line of a dot plot, in units of the axis (0..1)."""

    label: str
    low: float
    value: float
    high: float
    mark: float | None  # a second, hollow mark
    colour: Literal["good", "bad", "dim"]


def intervals(rows: Sequence[Interval], limit: float, title: str) -> str:
    """Dots with their intervals, one below the other, on an axis from 0 to `limit`."""
    height = _AXIS + _ROW * len(rows) + 6
    span = _WIDTH - _LEFT - 20

    def x(value: float) -> float:
        return _LEFT + span * min(value, limit) / limit

    parts = [_open(height, title)]
    for step in range(5):
        value = limit * step / 4
        parts.append(f'<line class="grid" x1="{x(value):.1f}" x2="{x(value):.1f}" y1="{_AXIS - 4}" y2="{height}"/>')
        parts.append(f'<text class="tick" x="{x(value):.1f}" y="12">{value:.2f}</text>')
    for number, row in enumerate(rows):
        y = _AXIS + _ROW * number + _ROW / 2
        parts.append(f'<text class="label" x="{_LEFT - 8}" y="{y + 4:.1f}">{escape(row.label)}</text>')
        parts.append(f'<line class="{row.colour}" x1="{x(row.low):.1f}" x2="{x(row.high):.1f}" y1="{y}" y2="{y}"/>')
        parts.append(f'<circle class="{row.colour}" cx="{x(row.value):.1f}" cy="{y}" r="3.5"/>')
        if row.mark is not None:
            parts.append(f'<circle class="mark" cx="{x(row.mark):.1f}" cy="{y}" r="3.5"/>')
    return "".join([*parts, "</svg>"])


def pairs(rows: Sequence[tuple[str, float, float]], title: str) -> str:
    """Expected and observed of each cell, as two bars."""
    limit = max((max(expected, observed) for _, expected, observed in rows), default=1.0) or 1.0
    height, span = 6 + 2 * _ROW * len(rows), _WIDTH - _LEFT - 70
    parts = [_open(height, title)]
    for number, (label, expected, observed) in enumerate(rows):
        top = 3 + 2 * _ROW * number
        parts.append(f'<text class="label" x="{_LEFT - 8}" y="{top + 18}">{escape(label)}</text>')
        for row, (value, colour) in enumerate(((expected, "dim"), (observed, "bar"))):
            width, y = span * value / limit, top + row * 13
            parts.append(f'<rect class="{colour}" x="{_LEFT}" y="{y}" width="{width:.1f}" height="11"/>')
            parts.append(f'<text class="value" x="{_LEFT + width + 5:.1f}" y="{y + 10}">{value:.1f}</text>')
    return "".join([*parts, "</svg>"])


def against_uniform(values: Sequence[float], title: str) -> str:
    """Sorted p-values against what as many tests of a right law give: the diagonal."""
    size, margin = 320, 34
    ordered, count = sorted(values), len(values)

    def place(value: float) -> float:
        return margin + (size - 2 * margin) * value

    parts = [f'<svg viewBox="0 0 {size} {size}" width="{size}" role="img"><title>{escape(title)}</title>']
    corner = size - margin
    parts.append(
        f'<rect class="frame" x="{margin}" y="{margin}" width="{corner - margin}" height="{corner - margin}"/>'
    )
    parts.append(f'<line class="grid" x1="{margin}" y1="{corner}" x2="{corner}" y2="{margin}"/>')
    for rank, value in enumerate(ordered):
        x, y = place((rank + 0.5) / count), size - place(value)
        parts.append(f'<circle class="{"bad" if value < 0.005 else "good"}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>')
    parts.append(f'<text class="tick" x="{size / 2}" y="{size - 8}">expected p-value</text>')
    parts.append(f'<text class="tick" transform="translate(14 {size / 2}) rotate(-90)">p-value</text></svg>')
    return "".join(parts)


def _open(height: float, title: str) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height}" width="100%" role="img"><title>{escape(title)}</title>'
