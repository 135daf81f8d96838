"""paceline distill: what it shows while it works, and the report at the end."""

from __future__ import annotations

import logging
from typing import Any

import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from paceline.cli.console import console, make_console, say
from paceline.distill.card import acceptance_table, advice, speed_table
from paceline.distill.interrupt import Interrupts
from paceline.distill.job import distill
from paceline.distill.options import DistillOptions


def run_distill(options: DistillOptions) -> None:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    interrupts = Interrupts()
    try:
        with interrupts.listening(), ProgressWatcher() as watcher:
            report = distill(options, watcher, interrupts)
    except KeyboardInterrupt:
        console.print(f"Stopped. The same command goes on where {escape(str(options.out))} was left.", soft_wrap=True)
        if interrupts.status is not None:
            raise typer.Exit(interrupts.status) from None
        raise
    show_report(report, options)


class ProgressWatcher:
    """A progress bar with the latest held-out figures on a terminal; lines anywhere else."""

    def __init__(self) -> None:
        columns = (
            TextColumn("{task.description:9s}", markup=False), BarColumn(bar_width=16),
            TextColumn("{task.percentage:3.0f}%"), TimeElapsedColumn(), TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}", markup=False),
        )  # fmt: skip
        self._bar = Progress(*columns, console=console, disable=not console.is_terminal)
        self._task: TaskID | None = None
        self._loss = self._figures = ""

    def __enter__(self) -> ProgressWatcher:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def advance(self, phase: str, done: int, total: int, **values: Any) -> None:
        if "loss" in values:
            self._loss = f"loss {values['loss']:.3f}"
        figures = " · ".join(part for part in (self._loss, self._figures) if part)
        if self._task is None:
            self._task = self._bar.add_task(phase, total=total, figures=figures)
        self._bar.update(self._task, description=phase, completed=done, total=total, figures=figures)

    def note(self, event: str, **values: Any) -> None:
        if event == "look":
            self._figures = held_out_words(values["held_out"])
            if not console.is_terminal:
                say(f"step {values['step']}: {self._figures}")
        elif line := words(event, values):
            say(line)


def held_out_words(figures: dict[str, dict[str, float]]) -> str:
    """'accepted 61% · 2.31 tok/pass', the mean over the kinds of held-out text."""
    accepted, tokens = (
        sum(kind[name] for kind in figures.values()) / len(figures) for name in ("accepted_at_0.7", "tokens_per_pass")
    )
    return f"accepted {accepted:.0%} · {tokens:.2f} tok/pass"


def words(event: str, values: dict[str, Any]) -> str:
    """A line for an event, or nothing for what the progress bar shows."""
    if event == "estimate":
        return (
            f"{values['steps']:,} steps on {values['positions']:,} positions, {values['rounds']} rounds of text: about "
            f"{duration(values['seconds'])} (a step {values['seconds_per_step']:.2f} s, a round "
            f"{values['seconds_per_round']:.1f} s), and the report."
        )
    if event == "candidate":
        return f"{values['choice']}: {held_out_words(values['held_out'])}"
    lines = {
        "model": "{message}",
        "loading": "Loading {target} on {device}",
        "resumed": "Going on after step {step:,} of {steps:,}.",
        "finished before": "The run in {folder} is finished already; --overwrite begins anew.",
        "data": "Your data: {beginnings:,} rows begin with it; {too_long:,} conversations are too long for --length.",
        "disagreement": (
            "Warning: only {agreement:.0%} of what Paceline wrote greedily is what the teacher would have written; the "
            "report is worth little. A precision too low for this target, or an error: please report it."
        ),
        "reduced head": "The head of reduced/ has {tokens:,} tokens, {coverage:.1%} of the target's answers.",
    }
    return lines[event].format(**values) if event in lines else ""


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def show_report(report: dict[str, Any], options: DistillOptions) -> None:
    out = make_console()
    sampled = report["tokens_per_pass"]["sampled"]
    name = f"temperature {sampled['temperature']}, top-p {sampled['top_p']}"
    for title, rows in (
        ("Tokens a target pass, greedy", acceptance_table(report["tokens_per_pass"]["greedy"])),
        (f"Tokens a target pass, {name}", acceptance_table(sampled["by_category"])),
        (f"Expected speed-up, one sequence, {report['machine']}", speed_table(report)),
    ):
        table = Table(title=escape(title), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        for heading in rows[0]:
            table.add_column(heading, no_wrap=True, justify="left" if heading == rows[0][0] else "right")
        for row in rows[1:]:
            table.add_row(*map(escape, row))
        out.print(table)
    out.print(advice(report), soft_wrap=True, markup=False)
    where = escape(str(options.out))
    out.print(f"The draft is in {where}, with its card (README.md), report.json and report.svg.", soft_wrap=True)
    speculation = f"--speculative-model {where} --num-speculative-tokens {report['best_k']}"
    if report["best_k"]:
        out.print(f"  paceline serve {escape(options.target)} {speculation}", soft_wrap=True)
