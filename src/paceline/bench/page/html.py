"""The report as one HTML page that needs nothing else: plotly's script is inside, no address is asked."""

from __future__ import annotations

import json
from html import escape
from typing import Any

from paceline.bench.page.chart import COLOURS, Chart, Series
from paceline.bench.page.charts import charts
from paceline.bench.page.tables import Table, all_tables
from paceline.bench.page.words import provenance, where_and_when
from paceline.bench.serve.results import Results

_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1b1f24; background: #fff; max-width: 1100px; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
table { border-collapse: collapse; font-size: 13px; } .wide { overflow-x: auto; }
td, th { text-align: left; padding: 3px 12px 3px 0; border-bottom: 1px solid #dde; vertical-align: top; }
th { color: #667; font-weight: 600; } .soft { color: #667; font-size: 13px; }
.loud { background: #fff3cd; padding: .4rem .8rem; border-left: 4px solid #ccbb44; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(500px, 1fr)); gap: 1.5rem; }
figure { margin: 0; min-width: 0; } figcaption { color: #667; font-size: 13px; }
"""


def html_page(results: Results) -> str:
    """Needs plotly."""
    from plotly.offline import get_plotlyjs

    drawn = charts(results)
    caption = where_and_when(results)
    figures = "".join(_figure(place, chart, caption) for place, chart in enumerate(drawn))
    data = json.dumps([_plotly(chart) for chart in drawn]).replace("</", "<\\/")
    warnings = "".join(f'<p class="loud"><b>{escape(line)}</b></p>' for line in results.warnings)
    notes = "".join(f'<p class="loud">{escape(note)}</p>' for note in results.notes)
    verdict = "".join(f"<p><b>{escape(found.words)}</b></p>" for found in results.break_even)
    tables = "".join(f"<h2>{escape(table.title)}</h2>{_table(table)}" for table in all_tables(results))
    measured = _table(Table("", ("", ""), provenance(results)))
    draw = (
        "for (const [place, chart] of CHARTS.entries()) Plotly.newPlot('chart' + place, chart.data, chart.layout, "
        "{responsive: true, displaylogo: false});"
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>paceline bench</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>'
        f"<script>{get_plotlyjs()}</script></head><body><h1>Benchmark of serving</h1>"
        f'<p class="soft">{escape(caption)}</p>{warnings}{verdict}{notes}<div class="charts">{figures}</div>{tables}'
        f"<h2>How this was measured</h2>{measured}<script>const CHARTS = {data};{draw}</script></body></html>\n"
    )


def _figure(place: int, chart: Chart, caption: str) -> str:
    return (
        f'<figure><div id="chart{place}" style="height:400px"></div>'
        f"<figcaption>{escape(chart.text)}<br>{escape(caption)}</figcaption></figure>"
    )


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in table.headings)
    rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows)
    note = f'<p class="soft">{escape(table.note)}</p>' if table.note else ""
    return f'<div class="wide"><table><tr>{head}</tr>{rows}</table></div>{note}'


def _plotly(chart: Chart) -> dict[str, Any]:
    x_axis: dict[str, Any] = {"title": {"text": chart.x_title}, "automargin": True}
    x_axis["type"] = "category" if chart.kind != "lines" else "log" if chart.x_log2 else "linear"
    if chart.ticks:
        x_axis |= {"tickvals": list(chart.ticks), "ticktext": [f"{tick:g}" for tick in chart.ticks]}
    layout: dict[str, Any] = {
        "title": {"text": chart.title, "font": {"size": 15}, "x": 0, "xanchor": "left"},
        "showlegend": True,
        "xaxis": x_axis,
        "yaxis": {"title": {"text": chart.y_title}, "rangemode": "tozero" if chart.from_zero else "normal"},
        "margin": {"l": 60, "r": 20, "t": 40, "b": 50},
        "legend": {"orientation": "h", "y": -0.25},
        "barmode": "stack" if chart.kind == "stacked" else "group",
        "template": {"layout": {"plot_bgcolor": "#f7f8fa"}},
    }
    if chart.level is not None:
        height, name = chart.level
        line = {"color": "#777", "dash": "dot", "width": 1}
        layout["shapes"] = [
            {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": height, "y1": height, "line": line}
        ]
        layout["annotations"] = [
            {"xref": "paper", "x": 1, "y": height, "text": name, "showarrow": False, "yshift": 8, "xanchor": "right"}
        ]
    return {"data": [_trace(chart, series) for series in chart.series], "layout": layout}


def _trace(chart: Chart, series: Series) -> dict[str, Any]:
    colour = COLOURS[series.colour % len(COLOURS)]
    trace: dict[str, Any] = {"name": series.name, "x": list(series.x), "y": list(series.y)}
    if chart.kind == "lines":
        dash = "dash" if series.dashed else "solid"
        trace |= {"mode": "lines+markers", "line": {"color": colour, "dash": dash}, "type": "scatter"}
        if series.labels:
            trace |= {"mode": "lines+markers+text", "text": list(series.labels), "textposition": "top center"}
    else:
        trace |= {"type": "bar", "marker": {"color": colour}}
    if series.error_bars is not None:
        below, above = series.error_bars
        trace["error_y"] = {
            "type": "data", "symmetric": False, "color": colour, "array": above, "arrayminus": below
        }  # fmt: skip
    return trace
