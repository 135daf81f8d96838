"""Which forms of a report can be written here: Markdown always, HTML with plotly, PNG with matplotlib."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from paceline.bench.files import replacing
from paceline.bench.serve.results import Results
from paceline.extras import to_install

_NEEDS = {"HTML page": "plotly", "PNG": "matplotlib"}


def missing_packages() -> list[str]:
    """Said before a long run: the report can still be made from its files afterwards."""
    missing = {form: name for form, name in _NEEDS.items() if find_spec(name) is None}
    if not missing:
        return []
    forms = " and ".join(missing)
    return [
        f"No {forms} will be written: {' and '.join(missing.values())} not installed. {to_install('report')} brings "
        "it; 'paceline bench report FOLDER' then makes the report."
    ]


def write_report(results: Results, folder: Path) -> tuple[list[Path], list[str]]:
    """report.html, report.png and report.md, as far as can be: what was written, and notes."""
    from paceline.bench.page.markdown import markdown

    written: list[Path] = []
    if find_spec("plotly") is not None:
        from paceline.bench.page.html import html_page

        written.append(folder / "report.html")
        with replacing(written[-1]) as partial:
            partial.write_text(html_page(results), encoding="utf-8")
    picture = None
    if find_spec("matplotlib") is not None:
        from paceline.bench.page.png import write_png

        picture = "report.png"
        written.append(folder / picture)
        with replacing(written[-1]) as partial:
            write_png(results, partial)
    written.append(folder / "report.md")
    with replacing(written[-1]) as partial:
        partial.write_text(markdown(results, picture), encoding="utf-8")
    return written, missing_packages()
