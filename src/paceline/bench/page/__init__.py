"""Reports of `paceline bench serve`: tables and charts are described once and drawn as HTML, PNG and Markdown.

results -> charts.py (what is shown) -> html.py (plotly), png.py (matplotlib); tables.py -> markdown, terminal
"""
