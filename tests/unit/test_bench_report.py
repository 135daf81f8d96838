"""Reports of paceline bench: every form, several days, other tools' files."""

from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from bench_serve_fakes import info, raw, record, span, two_arms

from paceline.bench.page.charts import charts
from paceline.bench.page.markdown import markdown
from paceline.bench.page.words import number, with_interval
from paceline.bench.serve.across import combine
from paceline.bench.serve.ask import speculation_counts
from paceline.bench.serve.intervals import Estimate
from paceline.bench.serve.reading import read_results
from paceline.bench.serve.records import Load, RawWriter
from paceline.bench.serve.results import Results, own_results, write_results
from paceline.bench.serve.summary import summarize
from paceline.cli import main
from paceline.errors import ConfigurationError

# As `vllm bench serve --save-result` documents its fields.
VLLM: dict[str, Any] = {
    "date": "20261130-120000", "backend": "openai-chat", "label": "vllm", "model_id": "m", "num_prompts": 16,
    "request_rate": "inf", "burstiness": 1.0, "max_concurrency": 8, "duration": 10.0, "completed": 15, "failed": 1,
    "total_input_tokens": 100, "total_output_tokens": 3000, "request_throughput": 1.5, "output_throughput": 300.0,
    "mean_ttft_ms": 50.0, "median_ttft_ms": 45.0, "p99_ttft_ms": 90.0, "mean_tpot_ms": 20.0, "median_tpot_ms": 20.0,
    "p99_tpot_ms": 30.0, "mean_itl_ms": 60.0, "median_itl_ms": 60.0, "p99_itl_ms": 61.0,
    "spec_decode_num_drafts": 100, "spec_decode_draft_tokens": 300, "spec_decode_accepted_tokens": 150,
    "spec_decode_per_position_acceptance_rates": [0.8, 0.5, 0.2],
}  # fmt: skip


def distribution(mean: float, total: float = 0.0) -> dict[str, Any]:
    percentiles = {"p50": mean, "p90": mean * 2, "p95": mean * 3, "p99": mean * 4}
    good = {
        "mean": mean,
        "total_sum": total,
        "percentiles": percentiles,
        "mean_ci": {"lower": 0.9 * mean, "upper": None},
    }
    return {"successful": good}


def guidellm(strategy: dict[str, Any]) -> dict[str, Any]:
    """As GuideLLM 0.8.1 writes it, with what is read."""
    metrics = {
        "request_totals": {"successful": 16, "errored": 1, "incomplete": 0, "total": 17},
        "output_token_count": distribution(64, 1024), "prompt_token_count": distribution(10, 160),
        "request_concurrency": distribution(3.9), "time_to_first_token_ms": distribution(84.0),
        "inter_token_latency_ms": distribution(6.67), "request_latency": distribution(0.5),
    }  # fmt: skip
    backend = {"kind": "openai_http", "target": "http://h:1", "model": "m"}
    benchmark = {
        "config": {"strategy": strategy, "backend": backend}, "metrics": metrics, "duration": 2.0, "start_time": 1.79e9,
    }  # fmt: skip
    return {"metadata": {"version": 2, "guidellm_version": "0.8.1"}, "benchmarks": [benchmark]}


@pytest.fixture(scope="module")
def results() -> Results:
    """Everything that a report can show."""
    told = speculation_counts({"acceptance_histogram": [1, 2, 1], "num_spec_steps": 4, "num_draft_tokens": 8})
    whole = two_arms()
    for one in whole.records:
        one.speculation = told if one.arm == "on" else None
    for one_span in whole.spans:
        one_span.counters = {"step_seconds": 1.0, "draft_seconds": 0.3, "verify_seconds": 0.5}
    arms = [info(name, hardware="4 x H100", num_gpus=4, price_per_hour=12.0) for name in ("on", "off")]
    whole.header.arms = arms
    whole.header.options |= {"goodput": {"ttft": 500.0}, "max_tokens": 256}
    whole.header.notes.append("SYNTHETIC <b>")
    return summarize(whole)


def test_every_chart_is_there_and_names_its_unit(results: Results) -> None:
    drawn = charts(results)
    titles = " | ".join(chart.title for chart in drawn)
    for word in ("gain against concurrent users", "interactivity", "TTFT", "TPOT", "ITL", "E2E", "objectives",
                 "Acceptance by position", "by category", "time of the server's steps", "Cost"):  # fmt: skip
        assert word in titles
    for chart in drawn:
        assert re.search(r"ms|tok/s|share|times|dollars|tokens", chart.y_title), chart.title
        assert chart.text
        for series in chart.series:
            assert len(series.x) == len(series.y) > 0
    start = drawn[0]
    assert start.level == (1.0, "break-even")
    assert list(start.series[0].x) == [1, 8]
    assert "on gains up to about" in start.text


def test_charts_without_figures_are_left_out() -> None:
    bare = charts(summarize(raw([info("one")], [span()], [record()])))
    titles = " | ".join(chart.title for chart in bare)
    assert "gain" not in titles
    assert "Acceptance" not in titles
    assert "Cost" not in titles


def test_the_page_needs_nothing_else(results: Results) -> None:
    pytest.importorskip("plotly")
    from paceline.bench.page.html import html_page

    page = html_page(results)
    loaded: list[str] = []

    class Loads(HTMLParser):
        def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
            loaded.extend(f"{tag} {name}={value}" for name, value in attributes if name in ("src", "href", "data"))

    Loads().feed(page)
    assert loaded == []
    assert len(page) > 1_000_000  # plotly is inside
    data = json.loads(page.split("const CHARTS = ")[1].split(";for (const")[0].replace("<\\/", "</"))
    assert len(data) == len(charts(results))
    assert data[0]["data"][0]["error_y"]["array"]
    assert page.count("4 x H100 · 2026-11-30") == 1 + len(data)  # under every chart
    assert "SYNTHETIC &lt;b&gt;" in page


def test_markdown_says_what_where_when_and_how(results: Results) -> None:
    text = markdown(results)
    for word in ("tok/s", "ms", "4 x H100", "2026-11-30", "paceline bench serve", "$12 an hour",
                 "tokens counted by usage", "on gains up to", "P99"):  # fmt: skip
        assert word in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert all(line.endswith("|") for line in rows)
    (overview, *_) = [block for block in text.split("\n\n") if block.startswith("| load")]
    assert len({line.count("|") for line in overview.splitlines()}) == 1


@pytest.mark.parametrize(
    ("value", "text"), [(1234.5, "1,234"), (0.01234, "0.0123"), (9.999, "10.0"), (0, "0"), (None, "-")]
)
def test_figures_have_three_digits(value: float | None, text: str) -> None:
    assert number(value) == text


def test_an_interval_is_shown_with_its_edges() -> None:
    assert with_interval(Estimate(1.5, 1.25, 2.0), "x") == "1.50x (1.25 to 2.00)"
    assert with_interval(Estimate(1.5), "x") == "1.50x"
    assert with_interval(None) == "-"


def test_results_come_back_from_their_file(results: Results, tmp_path: Path) -> None:
    write_results(tmp_path / "bench.json", results)
    found = read_results(tmp_path / "bench.json")
    assert found.digest is not None
    assert msgspec.structs.replace(found, digest=None) == results
    assert read_results(tmp_path) == own_results(json.loads((tmp_path / "bench.json").read_text())) == found


def test_figures_can_be_derived_again_from_the_raw_file(tmp_path: Path) -> None:
    whole = two_arms()
    writer = RawWriter(tmp_path / "requests.jsonl", whole.header)
    writer.write([*whole.records, *whole.spans])
    writer.close()
    assert read_results(tmp_path / "requests.jsonl") == summarize(whole)


def test_runs_of_several_days_are_compared(results: Results) -> None:
    other = summarize(raw([info("off"), info("peer")], [span("off", 8), span("peer", 8)],
                          [record("off", 8), record("peer", 8)]))  # fmt: skip
    both = combine([results, other], None)
    assert [arm.name for arm in both.arms] == ["on", "off (1)", "off (2)", "peer"]
    own = {(c.arm, c.baseline, c.load.value) for c in both.comparisons if not c.across}
    assert own == {("on", "off (1)", 1), ("on", "off (1)", 8), ("off (2)", "peer", 8)}
    assert {(c.arm, c.baseline) for c in both.comparisons if c.across} == {("off (1)", "off (2)")}
    assert any("did not take turns" in note for note in both.notes)
    assert len(both.sources) == 2
    assert "off (1)" in markdown(both)
    asked = combine([results, other], "peer")
    across = {(c.arm, c.baseline, c.load.value) for c in asked.comparisons if c.across}
    assert across == {("on", "peer", 8), ("off (1)", "peer", 8), ("off (1)", "off (2)", 8)}
    assert combine([results], None) is results
    assert combine([results], "on").comparisons[0].arm == "off"
    for parts in ([results], [results, other]):
        with pytest.raises(ConfigurationError, match="--baseline nobody"):
            combine(parts, "nobody")


def a_day(date: str, slower: float = 1.0, **options: Any) -> Results:
    """One user without a pause; a token each 10 ms without speculation, 1.5 times as fast with it."""
    spans, records = [], []
    for arm, pace in (("on", 10_000 / 1.5), ("off", 10_000.0)):
        for turn in range(2):
            length, took = 100 + turn, round(pace * slower * (100 + turn))
            events = [(round(pace * slower * (place + 1)), place + 1) for place in range(length)]
            records.append(record(arm, round=turn, end_us=took, events=events, completion_tokens=length))
            spans.append(span(arm, round=turn, end_us=took))
    whole = raw([info("on"), info("off")], spans, records, **options)
    whole.header.environment = whole.header.environment | {"date": date}
    return summarize(whole)


def test_what_differs_between_runs_is_said_first_and_a_drift_is_no_gain() -> None:
    """The second run is twice as slow, with and without speculation: each gain is 1.5, and none is claimed across."""
    fast = a_day("2026-11-30T20:00:00Z", max_tokens=256)
    slow = a_day("2026-12-01T08:00:00Z", 2.0, temperature=0.8, max_tokens=64)
    both = combine([fast, slow], None)
    assert both.warnings[0].startswith("THE RUNS DIFFER")
    for words in ("max_tokens (256 / 64)", "temperature (0.0 / 0.8)", "day (2026-11-30 / 2026-12-01)"):
        assert words in both.warnings[0]
    assert "model" not in both.warnings[0]
    assert "off (1) over off (2): 2.00x in tok/s at 1 user" in " ".join(both.warnings)
    assert "\n" not in both.warnings[0]
    own = {(c.arm, c.baseline): c.throughput_gain for c in both.comparisons if not c.across}
    assert list(own) == [("on (1)", "off (1)"), ("on (2)", "off (2)")]
    before = [part.comparisons[0].throughput_gain for part in (fast, slow)]
    assert list(own.values()) == before  # as each run has it
    for found in combine([fast, slow], "off (2)").break_even + both.break_even:
        assert found.arm[-3:] == found.baseline[-3:], found.words
    text = markdown(both)
    assert text.index("THE RUNS DIFFER") < text.index("THE SAME ARM DIFFERS") < text.index("on (1)")
    assert "across runs" in text
    again = combine([fast, a_day("2026-11-30T21:00:00Z", max_tokens=256)], None)
    assert again.warnings == []  # the same conditions and the same speed


def test_runs_of_one_arm_are_held_against_the_last_one_s() -> None:
    """What `--help` says of the default: no run has a baseline of its own, so the last counts."""
    parts = []
    for name, took in (("a", 100), ("b", 200)):
        events = [(took * 1000 * (place + 1), place + 1) for place in range(10)]
        one = record(name, end_us=took * 10_000, events=events, completion_tokens=10)
        parts.append(summarize(raw([info(name)], [span(name, end_us=took * 10_000)], [one])))
    both = combine(parts, None)
    assert both.baseline == "b"
    (compared,) = both.comparisons
    assert compared.across
    assert compared.throughput_gain is not None
    assert compared.throughput_gain.value == pytest.approx(2.0)
    assert both.break_even[0].words.startswith(
        "Across runs, which did not take turns: Without an interval, by the values alone, a gives more"
    )
    assert combine(parts, "a").comparisons[0].arm == "b"


def test_vllm_results_are_read(tmp_path: Path) -> None:
    path = tmp_path / "vllm.json"
    path.write_text(json.dumps(VLLM))
    found = read_results(path)
    (case,) = found.cases
    assert case.load == Load("users", 8)
    assert (case.num_requests, case.num_failed) == (16, 1)
    assert case.output_tok_s == Estimate(300.0)
    assert case.latency("ttft", "p50") == 45.0
    assert case.latency("itl", "mean") is None  # it counts chunks (p40)
    assert case.latency("gap", "p99") == 61.0
    assert case.acceptance is not None
    assert case.acceptance.mean_length == 2.5
    appended = [VLLM | {"max_concurrency": 1}, VLLM | {"request_rate": 4.0}]
    path.write_text("\n".join(map(json.dumps, appended)))
    assert [case.load for case in read_results(path).cases] == [Load("users", 1), Load("rate", 4)]


@pytest.mark.parametrize(
    ("strategy", "load"),
    [
        ({"type_": "concurrent", "streams": 4}, Load("users", 4)),
        ({"type_": "synchronous"}, Load("users", 1)),
        ({"type_": "throughput"}, Load("users", 4)),
        ({"type_": "poisson", "rate": 2.5}, Load("rate", 2.5)),
    ],
)
def test_guidellm_results_are_read(tmp_path: Path, strategy: dict[str, Any], load: Load) -> None:
    (tmp_path / "g.json").write_text(json.dumps(guidellm(strategy)))
    found = read_results(tmp_path / "g.json")
    (case,) = found.cases
    assert found.tool == "GuideLLM 0.8.1"
    assert (case.load, case.num_failed, case.output_tokens) == (load, 1, 1024)
    assert case.output_tok_s == Estimate(512.0)
    assert case.latency_ms["ttft"]["mean"] == Estimate(84.0, 0.9 * 84.0, None)
    assert case.latency("tpot", "p50") == 6.67
    assert case.latency("e2e", "p99") == 2000.0
    assert charts(found)


def test_an_interval_of_guidellm_that_begins_below_0_begins_at_0(tmp_path: Path) -> None:
    """A few requests that scatter give such a one by a normal law: the file is whole."""
    content = guidellm({"type_": "synchronous"})
    scattered = content["benchmarks"][0]["metrics"]["time_to_first_token_ms"]["successful"]
    scattered["mean_ci"] = {"lower": -30.0, "upper": 198.0}
    (tmp_path / "g.json").write_text(json.dumps(content))
    (case,) = read_results(tmp_path / "g.json").cases
    assert case.latency_ms["ttft"]["mean"] == Estimate(84.0, 0.0, 198.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "no result"),
        ("", "is empty"),
        ("{", "not JSON"),
        ('{"benchmark": "offline", "results": []}', "is a document of paceline bench offline"),
        (json.dumps(VLLM | {"total_output_tokens": None}), "not like one of this version"),
        ('{"benchmark": "serve", "cases": []}', "not like one of this version"),
    ],
)
def test_files_that_are_no_results(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ConfigurationError, match=said):
        read_results(tmp_path / "x.json")


def test_the_command_writes_every_form(
    tmp_path: Path, results: Results, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("plotly")
    write_results(tmp_path / "bench.json", results)
    (tmp_path / "vllm.json").write_text(json.dumps(VLLM))
    files = [str(tmp_path / name) for name in ("bench.json", "vllm.json")]
    monkeypatch.setattr(sys, "argv", ["paceline", "bench", "report", *files, "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"report.html", "report.png", "report.md"}
    picture = (tmp_path / "out" / "report.png").read_bytes()
    assert picture.startswith(b"\x89PNG\r\n")
    assert len(picture) > 50_000
    said = capsys.readouterr()
    assert "on over vllm, across runs" in " ".join(said.out.split())
    assert said.out.index("THE RUNS DIFFER") < said.out.index("Across runs, which did not take turns")
    assert "THE RUNS DIFFER" in (tmp_path / "out" / "report.html").read_text().partition('class="charts"')[0]
