"""What `paceline bench serve` says while it runs: a bar on a terminal, a line a case elsewhere; standard error."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from paceline.bench.serve.records import Load, RunHeader
from paceline.cli.console import console, say, show_notes


class BenchProgress:
    """A `Watcher`: two bars, one of the whole run's cases and one of the case's requests."""

    def __init__(self, cases_an_arm: int) -> None:
        self._cases_an_arm = cases_an_arm
        self._bar = Progress(  # columns without markup: theirs would read emoji codes, whatever the console does
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[speed]}", markup=False),
            console=console,
            disable=not console.is_terminal,
        )
        self._run = self._bar.add_task("All cases", total=None, speed="")
        self._case = self._bar.add_task("", total=None, speed="", visible=False)
        self._label = ""
        self._tokens = self._failed = self._done = 0
        self._shown = self._seconds = 0.0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def opened(self, header: RunHeader) -> None:
        self._bar.update(self._run, total=self._cases_an_arm * len(header.arms))
        for arm in header.arms:
            is_base = " (baseline)" if arm.name == header.baseline else ""
            server = arm.server or "unknown server"
            say(f"{arm.name}{is_base}: {arm.model} at {arm.url}, {server}; tokens counted by {arm.counting}")
        show_notes(header.notes)

    def case(self, arm: str, load: Load, round_number: int, total: int) -> None:
        self._label = f"{arm}, {load.label}, round {round_number + 1}"
        self._tokens = self._failed = self._done = 0
        self._bar.reset(self._case, total=total, description=self._label, visible=True, speed="")

    def answered(self, tokens: int, seconds: float, failed: bool) -> None:
        self._tokens += tokens
        self._failed += failed
        self._done += 1
        self._seconds = seconds
        now = time.monotonic()
        if now - self._shown > 0.2:  # drawing takes milliseconds that belong to the streams
            self._shown = now
            self._bar.update(self._case, completed=self._done, speed=self._speed())

    def case_over(self) -> None:
        self._bar.update(self._case, completed=self._done, speed=self._speed())
        self._bar.advance(self._run)
        say(f"{self._label}: {self._done} answers, {self._speed()}")

    def _speed(self) -> str:
        failed = f", {self._failed} failed" if self._failed else ""
        return f"{self._tokens / max(self._seconds, 1e-9):,.1f} tok/s{failed}"
