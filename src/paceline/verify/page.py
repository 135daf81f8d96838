"""The report as one HTML page: everything inline, readable from a file, in a dark or a light window."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from paceline.verify.report import Cell, DeterminismTest, Difference, LawTest, ParityTest, Report
from paceline.verify.svg import Interval, against_uniform, intervals, pairs

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --soft: #667; --good: #17803d; --bad: #c62828;
  --line: #dde; --bar: #2f6fbd; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --paper: #15181c; --soft: #9aa3ad; --good: #4cc27a;
  --bad: #ff6b6b; --line: #333b45; --bar: #6aa8f0; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 860px;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; } h3 { font-size: 1rem; }
table { border-collapse: collapse; width: 100%; font-size: 13px; } td, th { text-align: left; padding: 3px 8px 3px 0;
  border-bottom: 1px solid var(--line); vertical-align: top; } th { color: var(--soft); font-weight: 600; }
td.number { text-align: right; font-variant-numeric: tabular-nums; } .good { color: var(--good); }
.bad { color: var(--bad); } .soft { color: var(--soft); } .wide { overflow-x: auto; }
.verdict { font-size: 1.2rem; font-weight: 600; }
svg text { font: 12px system-ui, sans-serif; fill: var(--ink); } svg .label { text-anchor: end; }
svg .tick { text-anchor: middle; fill: var(--soft); } svg .value { fill: var(--soft); font-size: 10px; }
svg .grid { stroke: var(--line); } svg .frame { fill: none; stroke: var(--line); }
svg circle.good { fill: var(--good); } svg circle.bad { fill: var(--bad); } svg circle.dim { fill: var(--soft); }
svg line.good { stroke: var(--good); } svg line.bad { stroke: var(--bad); } svg line.dim { stroke: var(--soft); }
svg circle.mark { fill: none; stroke: var(--soft); } svg rect.dim { fill: var(--soft); opacity: .55; }
svg rect.bar { fill: var(--bar); }
"""
_TITLE = "Is speculation lossless here?"


def page(report: Report) -> str:
    parts = [
        _verdict(report),
        _findings(report),
        _law(report.law, report.level),
        _modes(report),
        _parity(report.parity),
        _determinism(report.determinism),
        _list("What was not tested", report.not_tested),
        _about(report.about),
    ]
    body = "".join(part for part in parts if part)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>paceline verify</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>{body}</body></html>\n'
    )


def _verdict(report: Report) -> str:
    colour, word = ("good", f"Passed{report.but_only}.") if report.passed else ("bad", "FAILED.")
    summary = "".join(f"<li>{escape(line)}</li>" for line in report.summary)
    return f'<h1>{_TITLE}</h1><p class="verdict {colour}">{word}</p><ul>{summary}</ul>'


def _findings(report: Report) -> str:
    return _list("What failed, and where to look", report.findings) if report.findings else ""


def _list(title: str, lines: Sequence[str]) -> str:
    return f"<h2>{escape(title)}</h2><ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>" if lines else ""


def _law(tests: Sequence[LawTest], level: dict[str, float]) -> str:
    if not tests:
        return ""
    said = (
        "Every dot is one place of one case: the total variation distance (TV) between the tokens that came and the "
        "target's exact law, with its 95% interval. A dot is never at 0, because a sample is not a law. The hollow "
        f"mark is the TV that would have been found with probability {level['power']:.0%} or more."
    )
    tested = [test.fit.p_value for test in tests if test.fit.degrees]
    uniform = against_uniform(tested, "p-values against the uniform law") if tested else ""
    parts = [f"<h2>Law</h2><p>{said}</p>"]
    for mode in dict.fromkeys(test.mode for test in tests):
        own = [test for test in tests if test.mode == mode]
        parts.append(f"<h3>{escape(mode)}</h3>{intervals([_interval(test) for test in own], _limit(tests), mode)}")
    parts += [_worst(test) for test in tests if test.verdict == "fail"]
    explained = (
        "The p-values of all places, in order, against the diagonal that right laws follow. Those below "
        f"{level['screening']} were tested again on fresh answers, which alone decide, at {level['alpha']} for all "
        "of them together."
    )
    return "".join([*parts, f"<p>{explained}</p>{uniform}", _law_table(tests)])


def _limit(tests: Sequence[LawTest]) -> float:
    values = [test.fit.variation_high for test in tests if test.fit.num_samples]
    return min(1.0, max([0.2, *values]))


def _interval(test: LawTest) -> Interval:
    tested = test.fit.degrees > 0 or test.fit.num_impossible > 0
    fit = test.fit
    return Interval(
        f"{_short(test.setting)}, place {test.place}",
        fit.variation_low,
        fit.variation,
        fit.variation_high if tested else fit.variation,
        test.detectable,
        "bad" if test.verdict == "fail" else "good" if tested else "dim",
    )


def _short(setting: str) -> str:
    return setting if len(setting) <= 34 else setting[:33] + "…"


def _worst(test: LawTest) -> str:
    cells = [*test.impossible, *test.worst]
    rows = [(_label(cell), cell.expected, float(cell.observed)) for cell in cells[:20]]
    title = f"{test.mode}; {test.setting}; place {test.place}"
    prefix = f" behind the tokens {test.worst_prefix}" if test.worst_prefix else ""
    return (
        f"<h3>{escape(title)}</h3><p>Expected (grey) and observed (blue) tokens of the group that fits worst"
        f"{escape(prefix)}.</p>{pairs(rows, title)}"
    )


def _label(cell: Cell) -> str:
    if cell.token is None:
        return "all other tokens"
    return f"{cell.token}" if cell.text is None else f"{cell.text!r} ({cell.token})"


def _law_table(tests: Sequence[LawTest]) -> str:
    heads = (
        "mode",
        "setting",
        "place",
        "answers",
        "coverage",
        "prefixes",
        "p-value",
        "fresh p",
        "TV",
        "found from",
        "",
    )
    rows = [
        (
            test.mode, test.setting, test.place, test.fit.num_samples, f"{test.coverage:.0%}", test.fit.num_groups,
            f"{test.fit.p_value:.2g}", f"{test.confirmation.p_value:.2g}" if test.confirmation else "",
            f"{test.fit.variation:.3f}", "-" if test.detectable is None else f"{test.detectable:.2f}", test.verdict,
        )
        for test in tests
    ]  # fmt: skip
    return f"<details><summary>All {len(tests)} places</summary>{_table(heads, rows)}</details>"


def _modes(report: Report) -> str:
    heads = ("mode", "answers", "drafted", "accepted", "rate", "steps with a bonus token")
    rows = [
        (m.mode, m.num_answers, m.num_draft_tokens, m.num_accepted, f"{m.acceptance_rate:.0%}", m.num_bonus)
        for m in report.modes
    ]
    return f"<h2>What speculation did meanwhile</h2>{_table(heads, rows)}" if rows else ""


def _parity(tests: Sequence[ParityTest]) -> str:
    if not tests:
        return ""
    heads = ("mode", "setting", "texts", "tokens", "identical", "near-ties", "")
    rows = [
        (
            t.mode, t.setting, t.num_texts, t.num_tokens, t.num_identical,
            sum(d.kind == "near-tie" for d in t.differences), t.verdict,
        )
        for t in tests
    ]  # fmt: skip
    differences = [difference for test in tests for difference in test.differences]
    return f"<h2>Greedy parity</h2>{_table(heads, rows)}{_differences(differences)}"


def _differences(differences: Sequence[Difference]) -> str:
    if not differences:
        return ""
    heads = ("mode", "setting", "prompt", "token", "without", "logit", "with", "logit", "kind")
    rows = [
        (
            d.mode, d.setting, d.prompt, d.place, _token(d.plain_token, d.plain_text), _number(d.plain_logit),
            _token(d.speculative_token, d.speculative_text), _number(d.speculative_logit), d.kind,
        )
        for d in differences
    ]  # fmt: skip
    return f"<h3>Differences</h3>{_table(heads, rows)}"


def _token(token: int | None, text: str | None) -> str:
    named = "" if token is None or token < 0 else f" ({token})"
    return f"{token}" if text is None else f"{text!r}{named}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.5f}"


def _determinism(tests: Sequence[DeterminismTest]) -> str:
    heads = ("mode", "company", "requests", "tokens", "changed", "")
    rows = [(t.mode, t.company, t.num_requests, t.num_tokens, len(t.changed), t.verdict) for t in tests]
    return f"<h2>Determinism by seed</h2>{_table(heads, rows)}" if rows else ""


def _about(about: dict[str, str]) -> str:
    return f"<h2>What ran</h2>{_table(('', ''), list(about.items()))}"


def _table(heads: Iterable[str], rows: Iterable[Sequence[object]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _cell(value: object) -> str:
    if value in ("pass", "fail", "fault"):
        return f'<td class="{"good" if value == "pass" else "bad"}">{value}</td>'
    number = isinstance(value, int | float)
    return f'<td class="number">{value}</td>' if number else f"<td>{escape(str(value))}</td>"
