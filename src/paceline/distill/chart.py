"""A line chart as SVG text: small enough to write here, and a model card shows it without scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb")  # Paul Tol's bright scheme
_WIDTH, _HEIGHT = 460, 320
_LEFT, _TOP, _RIGHT, _BOTTOM = 44, 34, 12, 40
_LEGEND = 150


@dataclass(frozen=True, slots=True)
class Panel:
    """Lines over K. `bold` names the line that matters; `bands` are (low, high) around it, or nothing."""

    title: str
    ks: Sequence[int]
    lines: Mapping[str, Sequence[float]]
    bold: str
    bands: Sequence[tuple[float, float]] = ()


def chart(panels: Sequence[Panel]) -> str:
    """The panels side by side."""
    width = len(panels) * (_WIDTH + _LEGEND)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{_HEIGHT}" viewBox="0 0 {width} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{_HEIGHT}" fill="white"/>',
    ]
    for number, panel in enumerate(panels):
        parts += [f'<g transform="translate({number * (_WIDTH + _LEGEND)},0)">', *_panel(panel), "</g>"]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(panel: Panel) -> list[str]:
    values = [value for line in panel.lines.values() for value in line] + [
        edge for band in panel.bands for edge in band
    ]
    low, high = min(0.9, *values), max(1.1, *values)
    first, last = panel.ks[0], panel.ks[-1]

    def x(k: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (k - first) / max(last - first, 1)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * (value - low) / (high - low)

    def path(points: Sequence[tuple[float, float]]) -> str:
        return " ".join(f"{x(k):.1f},{y(value):.1f}" for k, value in points)

    parts = [f'<text x="{_LEFT}" y="20" font-size="14">{escape(panel.title)}</text>']
    for tick in _ticks(low, high):
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for k in panel.ks:
        parts.append(f'<text x="{x(k):.1f}" y="{_HEIGHT - 22}" text-anchor="middle">{k}</text>')
    parts.append(f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 6}" text-anchor="middle">K, tokens drafted a step</text>')
    if panel.bands:
        edges = [(k, b[0]) for k, b in zip(panel.ks, panel.bands, strict=True)]
        edges += [(k, b[1]) for k, b in reversed(list(zip(panel.ks, panel.bands, strict=True)))]
        parts.append(f'<polygon points="{path(edges)}" fill="#000" opacity="0.1"/>')
    for number, (name, line) in enumerate(panel.lines.items()):
        colour, stroke = ("#000", 3) if name == panel.bold else (_COLOURS[number % len(_COLOURS)], 1.5)
        points = path(list(zip(panel.ks, line, strict=True)))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{stroke}"/>')
        height = _TOP + 16 * number
        parts.append(
            f'<line x1="{_WIDTH}" x2="{_WIDTH + 18}" y1="{height}" y2="{height}" stroke="{colour}" '
            f'stroke-width="{stroke}"/>'
        )
        parts.append(f'<text x="{_WIDTH + 24}" y="{height + 4}">{escape(name)}</text>')
    return parts


def _ticks(low: float, high: float) -> list[float]:
    """Four to nine round numbers."""
    step = next(s for s in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50) if (high - low) / s <= 9 or s == 50)
    return [round(n * step, 3) for n in range(int(low / step), int(high / step) + 1) if low <= n * step <= high]
