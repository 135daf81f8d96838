"""The charts of a report in one picture, drawn by matplotlib: no browser is needed."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from paceline.bench.page.chart import COLOURS, Chart, Series
from paceline.bench.page.charts import charts
from paceline.bench.page.words import where_and_when
from paceline.bench.serve.results import Results

_COLUMNS, _WIDTH, _HEIGHT, _HEADING, _DPI = 2, 7.0, 4.6, 0.5, 100  # inches
_ROOM = 1.15  # for the label above the highest point
_LONGEST = 190  # characters of a line across the picture


def write_png(results: Results, path: Path) -> None:
    """Needs matplotlib. Its global state is not touched: a figure of one's own, with the renderer for files."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawn = charts(results)
    lines = -(-max(len(drawn), 1) // _COLUMNS)
    height = lines * _HEIGHT + _HEADING
    figure = Figure(figsize=(_COLUMNS * _WIDTH, height))
    FigureCanvasAgg(figure)
    figure.subplots_adjust(
        left=0.06, right=0.985, bottom=0.85 / height, top=1 - (_HEADING + 0.3) / height, hspace=0.38, wspace=0.18
    )
    figure.text(0.5, 1 - 0.25 / height, where_and_when(results), fontsize=9, color="#555555", ha="center")
    if results.warnings:
        words = " ".join(results.warnings)
        short = words if len(words) <= _LONGEST else f"{words[: _LONGEST - 1]}…"
        figure.text(0.5, 1 - 0.45 / height, short, fontsize=9, color="#b00020", ha="center", parse_math=False)
    for place, chart in enumerate(drawn):
        _draw(figure.add_subplot(lines, _COLUMNS, place + 1), chart)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # an emoji in a name: a box is drawn
        figure.savefig(path, dpi=_DPI, format="png")


def _draw(axes: Any, chart: Chart) -> None:
    axes.set_title(chart.title, fontsize=11)
    axes.set_xlabel(chart.x_title)
    axes.set_ylabel(chart.y_title)
    axes.grid(visible=True, color="#e4e6ea")
    axes.set_axisbelow(True)
    if chart.kind == "lines":
        for series in chart.series:
            _line(axes, series)
        _scale(axes, chart)
    else:
        _bars(axes, chart)
    if chart.level is not None:
        axes.axhline(chart.level[0], color="#777777", linestyle=":", linewidth=1, label=chart.level[1])
    if chart.from_zero:
        axes.set_ylim(bottom=0)
    if any(series.labels for series in chart.series):
        axes.set_ylim(top=_ROOM * max(max(series.y) for series in chart.series))
    axes.legend(fontsize=8)


def _line(axes: Any, series: Series) -> None:
    colour = COLOURS[series.colour % len(COLOURS)]
    axes.errorbar(
        list(series.x), list(series.y), yerr=series.error_bars,
        color=colour, linestyle="--" if series.dashed else "-", marker="o", markersize=4, capsize=3, label=series.name,
    )  # fmt: skip
    for x, y, label in zip(series.x, series.y, series.labels or [""] * len(series.y), strict=True):
        if label:
            axes.annotate(label, (x, y), fontsize=7, textcoords="offset points", xytext=(0, 5), ha="center")


def _scale(axes: Any, chart: Chart) -> None:
    if chart.x_log2:
        axes.set_xscale("log", base=2)
    if chart.ticks:
        axes.set_xticks(list(chart.ticks), [f"{tick:g}" for tick in chart.ticks])
        axes.minorticks_off()


def _bars(axes: Any, chart: Chart) -> None:
    names = list(dict.fromkeys(str(x) for series in chart.series for x in series.x))
    stacked = chart.kind == "stacked"
    width = 0.8 if stacked else 0.8 / len(chart.series)
    bottoms = [0.0] * len(names)
    for number, series in enumerate(chart.series):
        heights = dict(zip(map(str, series.x), series.y, strict=True))
        shift = 0.0 if stacked else (number - (len(chart.series) - 1) / 2) * width
        places = [place + shift for place in range(len(names))]
        values = [heights.get(name, 0.0) for name in names]
        colour = COLOURS[series.colour % len(COLOURS)]
        axes.bar(places, values, width, bottom=bottoms if stacked else None, color=colour, label=series.name)
        bottoms = [bottom + value for bottom, value in zip(bottoms, values, strict=True)]
    tilt = {"rotation": 30, "ha": "right"} if max(map(len, names), default=0) > 6 else {}
    axes.set_xticks(range(len(names)), names, fontsize=8, **tilt)
