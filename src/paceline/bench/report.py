"""What a benchmark says: the ceiling, a table, and one JSON document in which nothing is rounded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from paceline.bench.acceptance import expected_tokens
from paceline.bench.ceiling import Ceiling
from paceline.bench.measure import Run
from paceline.bench.offline import Case
from paceline.bench.sweep import Sweep

_WIDTH = 170  # where the output is no terminal


def make_console() -> Console:
    """Standard output; wide enough for the table when piped into a file. Emoji codes stay as a user wrote them."""
    console = Console(highlight=False, emoji=False)
    return console if console.is_terminal else Console(highlight=False, emoji=False, width=_WIDTH)


def ceiling_table(ceiling: Ceiling, sweep: Sweep, rates: dict[int, float | None], *, measured: bool) -> Table:
    """`rates`: the conditional acceptance at each K; None: unknown before the run, so all drafts are taken as kept."""
    origin = "measured here" if measured else "as stated"
    table = Table(title=f"Ceiling: bytes read a decode step at {ceiling.bandwidth / 1e9:,.0f} GB/s ({origin})")
    for heading in ("batch", "K", "weights GB", "KV GB", "step ms", "tok/pass", "tok/s", "per user"):
        table.add_column(heading, justify="right")
    for batch in sweep.batches:
        for k in sweep.ks:
            _add_ceiling(table, ceiling, sweep, batch, k, rates.get(k))
    return table


def _add_ceiling(table: Table, ceiling: Ceiling, sweep: Sweep, batch: int, k: int, rate: float | None) -> None:
    total = ceiling.step_bytes(batch, k, sweep.mean_positions)
    weights = ceiling.step_bytes(0, k, 0)
    seconds = ceiling.step_seconds(batch, k, sweep.mean_positions)
    tokens = expected_tokens(1.0 if rate is None else rate, k)
    at_most = "≤ " if rate is None and k else ""
    table.add_row(
        str(batch), str(k), f"{weights / 1e9:.3f}", f"{(total - weights) / 1e9:.3f}", f"{seconds * 1e3:.2f}",
        f"{at_most}{tokens:.2f}", f"{at_most}{batch * tokens / seconds:,.1f}", f"{at_most}{tokens / seconds:,.1f}",
    )  # fmt: skip


def summary(case: Case, ceiling: Ceiling, sweep: Sweep, plain: Case | None) -> dict[str, Any]:
    """The derived figures of one case, from its median run. `plain`: the same batch with K=0, if it was measured."""
    run = case.median
    seconds = ceiling.step_seconds(case.batch, case.k, sweep.mean_positions)
    speed = run.decode_tokens_per_second
    ttft = run.ttft_seconds
    return {
        "batch": case.batch,
        "k": case.k,
        "adaptive": case.adaptive,
        "draft_loaded": case.has_draft,
        "synthetic_acceptance_rate": case.acceptance_rate,
        "decode_tokens_per_second": speed,
        "tokens_per_second_per_user": speed / case.batch,
        "speed_up": speed / plain.median.decode_tokens_per_second if plain else None,
        "speed_up_range": _range(case, plain),
        "fraction_of_ceiling": seconds / run.full_step_seconds if run.full_steps and not case.adaptive else None,
        "tokens_per_pass": run.tokens_per_pass,
        "tokens_per_drafted_pass": run.tokens_per_drafted_pass,
        "step_ms": _ms(run.full_step_seconds) if run.full_steps else None,
        **_split(run),
        "ttft_ms_mean": _ms(sum(ttft) / len(ttft)),
        "ttft_ms_max": _ms(max(ttft)),
        "prefill_tokens_per_second": case.batch * sweep.input_len / run.prefill_seconds,
        "prefill_tflops": _prefill_tflops(case, ceiling, sweep),
        "graph_hit_rate": run.captured_steps / run.decode_steps if run.decode_steps else None,
    }


def _range(case: Case, plain: Case | None) -> tuple[float, float] | None:
    """The least and the most of the repeats, each over the one of K=0 that it took turns with."""
    if plain is None or plain is case or min(len(case.runs), len(plain.runs)) < 2:
        return None
    speeds = [[run.decode_tokens_per_second for run in one.runs] for one in (case, plain)]
    ratios = [above / below for above, below in zip(*speeds, strict=False) if below]
    return (min(ratios), max(ratios)) if ratios else None


def _split(run: Run) -> dict[str, float]:
    """Milliseconds of the steps whose mean `step_ms` is: full ones, or all where none was full. The host gap is what is
    in none of the three parts, so that the four add up to the step."""
    if run.full_steps:
        steps, whole = run.full_steps, run.full_seconds
        parts = {"draft": run.full_draft_seconds, "verify": run.full_verify_seconds, "accept": run.full_accept_seconds}
    else:
        steps, whole = max(run.decode_steps, 1), run.decode_seconds
        parts = {"draft": run.draft_seconds, "verify": run.verify_seconds, "accept": run.accept_seconds}
    gap = whole - sum(parts.values())
    return {f"{name}_ms": _ms(seconds / steps) for name, seconds in {**parts, "host_gap": gap}.items()}


def _prefill_tflops(case: Case, ceiling: Ceiling, sweep: Sweep) -> float:
    """Of the layers' linears alone, 2 operations a weight and token: the head reads few rows, attention is left out."""
    operations = 2.0 * ceiling.target.linear_parameters * case.batch * sweep.input_len
    return operations / case.median.prefill_seconds / 1e12


def summaries(cases: Sequence[Case], ceiling: Ceiling, sweep: Sweep) -> list[dict[str, Any]]:
    """In the order of batch and K, whichever engine measured them; speed-ups are over K=0 of the same engine, or else
    of the engine without a draft."""
    plain: dict[int, Case] = {}
    for case in sorted(cases, key=lambda case: case.has_draft):
        if case.k == 0:
            plain[case.batch] = case
    ordered = sorted(
        cases,
        key=lambda case: (
            sweep.batches.index(case.batch), case.has_draft, sweep.place(case.k, adaptive=case.adaptive),
        ),
    )  # fmt: skip
    return [summary(case, ceiling, sweep, plain.get(case.batch)) for case in ordered]


def result_table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(
        title="Decode: tokens a second over all sequences; milliseconds of a step",
        caption="step and its parts: steps in which all sequences were running; tok/pass: over all passes of a row, "
        "with drafts or without",
        caption_justify="left",
    )
    has_range = any(row["speed_up_range"] for row in rows)
    for heading in (
        "batch", "K", "tok/s", "per user", "vs K=0", *(["repeats"] if has_range else []), "of ceiling", "tok/pass",
        "step", "draft", "verify", "accept", "host gap", "TTFT mean", "max", "graphs",
    ):  # fmt: skip
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            str(row["batch"]), _k_in_words(row), f"{row['decode_tokens_per_second']:,.1f}",
            f"{row['tokens_per_second_per_user']:,.1f}", _or_dash(row["speed_up"], "{:.2f}x"),
            *([_or_dash(row["speed_up_range"], "{0[0]:.2f}-{0[1]:.2f}")] if has_range else []),
            _or_dash(row["fraction_of_ceiling"], "{:.0%}"), f"{row['tokens_per_pass']:.2f}",
            _or_dash(row["step_ms"], "{:.2f}"),
            *(f"{row[name]:.2f}" for name in ("draft_ms", "verify_ms", "accept_ms", "host_gap_ms")),
            f"{row['ttft_ms_mean']:,.0f}", f"{row['ttft_ms_max']:,.0f}", _or_dash(row["graph_hit_rate"], "{:.0%}"),
        )  # fmt: skip
    return table


def warnings(cases: Sequence[Case], rows: Sequence[dict[str, Any]] = ()) -> list[str]:
    """What makes a figure another thing than it seems. `rows`: the summaries of the cases."""
    found = []
    if over := [row for row in rows if (row["fraction_of_ceiling"] or 0) > 1]:
        where = "; ".join(f"batch {row['batch']}, K={_k_in_words(row)}" for row in over)
        found.append(
            f"{where}: above 100 % of the ceiling, so the ceiling is too low. The bandwidth was measured (or stated) "
            "below what the memory gives, as beside other work on the machine, or the weights stay in a cache. Run "
            "again on a quiet machine, or give --bandwidth."
        )
    for case in cases:
        where = f"batch {case.batch}, {case.words}"
        if case.k and any(run.speculation_rested for run in case.runs):
            found.append(f"{where}: the engine found the draft useless and let it rest; these are not the speeds of K.")
        if any(run.num_preemptions for run in case.runs):
            found.append(f"{where}: sequences were preempted for want of KV blocks; give a larger cache.")
    return found


def _k_in_words(row: dict[str, Any]) -> str:
    if row["adaptive"]:
        return f"0 to {row['k']}"
    return str(row["k"]) if row["draft_loaded"] or row["k"] else "0, no draft"


def document(
    *,
    environment: dict[str, Any],
    options: dict[str, Any],
    configurations: Sequence[dict[str, str]],
    ceiling: Ceiling,
    rows: Sequence[dict[str, Any]],
    cases: Sequence[Case],
    notes: Sequence[str],
) -> dict[str, Any]:
    """Derived figures in `results`, and the runs they come from in `runs`."""
    runs = [{"batch": case.batch, "draft_loaded": case.has_draft, **asdict(run)} for case in cases for run in case.runs]
    return {
        "benchmark": "offline",
        **environment,
        "options": options,
        "configurations": list(configurations),
        "notes": list(notes),
        "ceiling": asdict(ceiling),
        "results": list(rows),
        "runs": runs,
    }


def as_line(content: dict[str, Any]) -> str:
    return json.dumps(content, separators=(",", ":"))


def _ms(seconds: float) -> float:
    return seconds * 1e3


def _or_dash(value: object, text: str) -> str:
    return "-" if value is None else text.format(value)
