"""A plan in a terminal: what serves the load, what speculation gains by concurrency, memory, and what was assumed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isinf

from rich.console import Group
from rich.markup import escape
from rich.table import Table

from paceline.capacity.calibration import Calibration
from paceline.capacity.hardware import Gpu
from paceline.capacity.planner import Answer, Fleet, Swept
from paceline.capacity.prices import Price
from paceline.capacity.question import Question
from paceline.capacity.sentences import sentences

_MOST_FLEETS = 5
_GIB = 1 << 30


def render(answer: Answer, calibration: Calibration | None) -> Group:
    parts: list[Table] = [_fleet_table(answer), _sweep_table(answer)]
    if answer.best is not None:
        parts.insert(1, _memory_table(answer.best))
    if calibration is not None:
        parts.append(_calibration_table(calibration))
    return Group(*parts, *sentences(answer, calibration))


def question_in_words(question: Question) -> str:
    return f"On {question.gpu.name}: {load_in_words(question)}"


def load_in_words(question: Question) -> str:
    """The pair, the load and the objective."""
    load, lengths, objective = question.load, question.load.workload, question.objective
    traffic = (
        f"{load.users} requests in flight"
        if load.users is not None
        else f"{load.requests_per_second:g} requests a second"
    )
    bounds = [
        f"{name} at most {seconds * 1e3:g} ms"
        for name, seconds in (("first token", objective.ttft), ("time a token", objective.tpot))
        if not isinf(seconds)
    ]
    draft = question.draft.name if question.draft else ("n-gram" if question.is_ngram else "no draft")
    return (
        f"{question.target.name} with {draft}: {traffic}, {lengths.input_len} tokens in and "
        f"{lengths.output_len} out; {' and '.join(bounds) or 'any latency'}"
    )


def _fleet_table(answer: Answer) -> Table:
    table = Table(title=question_in_words(answer.question))
    headings = (
        "drafts", "TP", "K", "GPUs", "nodes", "requests a replica", "TTFT ms", "TPOT ms", "tok/s", "$ a month",
        "$/M output", "$/M tokens", "margin",
    )  # fmt: skip
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    named: list[tuple[str, Fleet | None]] = [("without", answer.plain), ("with", answer.speculative)]
    shown = [fleet for _, fleet in named if fleet is not None]
    others = [fleet for fleet in answer.fleets[:_MOST_FLEETS] if fleet not in shown]
    for name, fleet in [*named, *(("", other) for other in others)]:
        if fleet is not None:
            table.add_row(name, *_fleet_cells(fleet), style="bold" if fleet is answer.best else None)
    return table


def _fleet_cells(fleet: Fleet) -> Iterator[str]:
    yield from (str(fleet.tp), str(fleet.k))
    rented = f" of {fleet.rented_gpus} rented" if fleet.rented_gpus != fleet.num_gpus else ""
    yield from (f"{fleet.num_gpus}{rented}", str(fleet.nodes))
    yield f"{fleet.point.concurrency} (up to {fleet.most_sequences})"
    yield from (f"{fleet.point.ttft * 1e3:,.0f}", f"{fleet.point.tpot * 1e3:.1f}", f"{fleet.tokens_per_second:,.0f}")
    money = fleet.money
    if money is None:
        yield from ("-", "-", "-", "-")
        return
    yield from (f"{money.usd_per_month:,.0f}", f"{money.usd_per_million_output_tokens:.2f}")
    yield f"{money.usd_per_million_tokens:.2f}"
    yield "-" if money.gross_margin is None else f"{money.gross_margin:.0%}"


def _sweep_table(answer: Answer) -> Table:
    ks = sorted({0, *answer.question.ks})
    table = Table(title=f"One replica, TP={answer.swept_tp}: output tokens a second by requests in flight and K")
    for heading in ("requests", *(f"K={k}" for k in ks), "best K", "gain", "TPOT ms", "TTFT ms"):
        table.add_column(heading, justify="right", no_wrap=True)
    for swept in answer.sweep:
        table.add_row(*_swept_cells(swept, ks))
    return table


def _swept_cells(swept: Swept, ks: list[int]) -> Iterator[str]:
    speeds = {point.k: point.tokens_per_second for point in swept.points}
    yield str(swept.concurrency)
    yield from (f"{speeds[k]:,.0f}" if k in speeds else "no room" for k in ks)
    yield from (str(swept.best.k), f"{swept.gain:.2f}x")
    yield from (f"{swept.best.tpot * 1e3:.1f}", f"{swept.best.ttft * 1e3:,.0f}")


def _memory_table(fleet: Fleet) -> Table:
    plan = fleet.memory
    table = Table(
        "memory of one GPU", "GiB", title=f"TP={fleet.tp}, K={fleet.k}, up to {fleet.most_sequences} sequences"
    )
    table.columns[1].justify = "right"
    for name, size in (
        ("target weights", plan.target_weight_bytes),
        ("draft weights", plan.draft_weight_bytes),
        ("cache, target's part", plan.num_blocks * plan.target_bytes_per_block),
        ("cache, draft's part", plan.num_blocks * plan.draft_bytes_per_block),
        ("activations of the largest step", plan.activation_bytes),
        ("captured graphs", plan.graph_bytes),
        ("CUDA context and kernels", plan.other_bytes),
        ("in all, of what may be used: " + f"{plan.limit_bytes / _GIB:,.2f}", plan.planned_bytes),
    ):
        table.add_row(name, f"{size / _GIB:,.2f}")
    return table


def _calibration_table(calibration: Calibration) -> Table:
    table = Table(title=f"Calibrated with {calibration.source}: tokens a second")
    for heading in ("batch", "K", "measured", "from first principles", "error", "calibrated", "error "):
        table.add_column(heading, justify="right", no_wrap=True)
    for before, after in zip(calibration.before, calibration.after, strict=True):
        table.add_row(
            str(before.case.batch), str(before.case.k), f"{before.case.tokens_per_second:,.1f}",
            f"{before.tokens_per_second:,.1f}", f"{before.error:+.1%}",
            f"{after.tokens_per_second:,.1f}", f"{after.error:+.1%}",
        )  # fmt: skip
    return table


def known_tables(gpus: Mapping[str, Gpu], prices: Sequence[Price]) -> Group:
    cards = Table(title="GPUs: peak rates, dense")
    for heading in ("--gpu", "memory GiB", "TB/s", "FP8 TFLOP/s", "BF16", "link GB/s", "source", "checked"):
        cards.add_column(heading, overflow="fold")
    for gpu in gpus.values():
        cards.add_row(
            gpu.key, f"{gpu.memory_gib:g}", f"{gpu.bandwidth_tb_s:g}", f"{gpu.fp8_tflops:,g}" if gpu.has_fp8 else "-",
            f"{gpu.bf16_tflops:,g}", f"{gpu.interconnect_gb_s:g}", escape(gpu.source), gpu.checked,
        )  # fmt: skip
    costs = Table(title="Prices: US dollars per GPU and hour, on demand")
    for heading in ("--cloud", "GPU", "$", "machine of", "what", "source", "checked"):
        costs.add_column(heading, overflow="fold")
    for price in prices:
        costs.add_row(
            escape(price.cloud), price.gpu, f"{price.usd_per_gpu_hour:.2f}", str(price.gpus), escape(price.what),
            escape(price.source), price.checked,
        )  # fmt: skip
    return Group(cards, costs)
