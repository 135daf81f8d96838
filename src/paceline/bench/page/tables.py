"""The tables of a report, as rows of text: one source for Markdown, HTML and the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.bench.page.words import NOTHING, number, with_interval
from paceline.bench.serve.intervals import Estimate
from paceline.bench.serve.results import OWN_TOOL, STATISTICS, Case, Comparison, Results

GAIN, PACE = "gain in tok/s", "gain in pace"
_PACE_NOTE = (
    "With arrivals (--rate) every arm is given the same load, so tok/s are about the same and no gain. There it is the "
    "pace that differs: mean TPOT of the baseline over the arm's, same prompts."
)
_METRICS = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "gap": "gap between chunks", "e2e": "E2E"}


@dataclass(frozen=True, slots=True)
class Table:
    """`note`: what a reader must know to read it right; shown with it."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def overview(results: Results) -> Table:
    """One line a load and arm, with the gain over the baseline."""
    gains = {(c.arm, c.load): c for c in sorted(results.comparisons, key=lambda c: not c.across)}  # its own run's last
    kinds = {c.load.kind for c in results.comparisons}
    has = {
        "tok/s a GPU": any(case.per_gpu_tok_s for case in results.cases),
        "tok/pass": any(case.acceptance and case.passes for case in results.cases),
        "within SLO": any(case.goodput_share for case in results.cases),
        "$/M tokens": any(case.usd_per_million_tokens for case in results.cases),
        GAIN: "users" in kinds,
        PACE: "rate" in kinds,
    }
    headings = ["load", "arm", "tok/s", *_given(has, GAIN, PACE), "tok/s a user", *_given(has, "tok/s a GPU"),
                "TTFT ms P50", "P99", "TPOT ms P50", "P99", *_given(has, "tok/pass", "within SLO", "$/M tokens"),
                "failed"]  # fmt: skip
    rows = []
    for case in results.cases:
        compared = gains.get((case.arm, case.load))
        cells = {
            GAIN: _gain(compared, compared.throughput_gain if compared else None),
            PACE: _gain(compared, compared.pace_gain if compared and case.load.kind == "rate" else None),
            "tok/s a GPU": _value(case.per_gpu_tok_s),
            "tok/pass": number(case.passes.tokens_a_pass) if case.passes else NOTHING,
            "within SLO": f"{case.goodput_share.value:.0%}" if case.goodput_share else NOTHING,
            "$/M tokens": _value(case.usd_per_million_tokens),
        }
        rows.append(
            [case.load.label, case.arm, _value(case.output_tok_s), *_cells(has, cells, GAIN, PACE),
             _value(case.per_user_tok_s), *_cells(has, cells, "tok/s a GPU"),
             *(number(case.latency(m, s)) for m in ("ttft", "tpot") for s in ("p50", "p99")),
             *_cells(has, cells, "tok/pass", "within SLO", "$/M tokens"), f"{case.num_failed} of {case.num_requests}"]
        )  # fmt: skip
    note = " ".join(words for words in (_what_speed_is(results), _PACE_NOTE if has[PACE] else "") if words)
    return Table("Output tokens a second, latency in milliseconds", headings, rows, note)


def _gain(compared: Comparison | None, gain: Estimate | None) -> str:
    return with_interval(gain, "x") + (" across runs" if gain and compared and compared.across else "")


def _what_speed_is(results: Results) -> str:
    """Only of runs of our own: other tools' are said in their notes."""
    if not any(source.tool == OWN_TOOL for source in results.origins):
        return ""
    counted = "tok/s counts the time in which every user had a request under way (with arrivals: all of it)."
    if not any(case.leaves_out_tokens for case in results.cases):
        return counted
    return (
        f"{counted} The end of a round, where users have run out of prompts, is left out: output tokens over seconds, "
        "and the speeds shown while it ran, count it and are mostly lower."
    )


def _given(has: dict[str, bool], *names: str) -> list[str]:
    return [name for name in names if has[name]]


def _cells(has: dict[str, bool], cells: dict[str, str], *names: str) -> list[str]:
    return [cells[name] for name in names if has[name]]


def _value(estimate: object) -> str:
    return number(getattr(estimate, "value", None))


def comparison(results: Results) -> Table | None:
    if not results.comparisons:
        return None
    rows = [
        [c.load.label, in_words(c), with_interval(c.throughput_gain, "x"),
         with_interval(c.pace_gain, "x"), with_interval(c.ttft_gain, "x"),
         NOTHING if c.same_texts is None else f"{c.same_texts} of {c.num_pairs}"]
        for c in results.comparisons
    ]  # fmt: skip
    headings = ("load", "arms", "throughput", "pace (TPOT)", "first token (TTFT)", "same text")
    return Table("How many times better, with 95 % intervals", headings, rows)


def in_words(compared: Comparison) -> str:
    return f"{compared.arm} over {compared.baseline}{', across runs' if compared.across else ''}"


def latencies(results: Results) -> Table:
    """Every percentile of every latency."""
    headings = ("load", "arm", "latency", *(f"{name.upper() if name != 'mean' else name}" for name in STATISTICS))
    rows = [
        [case.load.label, case.arm, f"{words}, ms",
         *(with_interval(case.latency_ms[metric].get(name)) for name in STATISTICS)]
        for case in results.cases
        for metric, words in _METRICS.items()
        if case.latency_ms.get(metric)
    ]  # fmt: skip
    return Table("Latency in milliseconds, with 95 % intervals over requests", headings, rows)


def volumes(results: Results) -> Table:
    headings = (
        "load", "arm", "rounds", "requests", "prompt tokens", "of them cached", "output tokens", "seconds",
        "under way", "req/s", "good req/s", "acceptance",
    )  # fmt: skip
    rows = [
        [case.load.label, case.arm, str(case.num_rounds), str(case.num_requests), _count(case.prompt_tokens),
         _count(case.cached_tokens), _count(case.output_tokens), number(case.seconds), number(case.mean_concurrency),
         number(case.requests_per_second), number(case.goodput_requests_per_second), _acceptance(case)]
        for case in results.cases
    ]  # fmt: skip
    return Table("What was sent and answered", headings, rows)


def _acceptance(case: Case) -> str:
    if case.acceptance is None:
        return NOTHING
    found = case.acceptance
    return f"{found.rate:.1%} of drafts (by {found.source}); {number(found.mean_length)} tokens a drafted pass"


def _count(value: int | None) -> str:
    return NOTHING if value is None else f"{value:,}"


def all_tables(results: Results) -> list[Table]:
    compared = comparison(results)
    return [overview(results), *([compared] if compared else []), latencies(results), volumes(results)]
