"""The progress bar of long offline work: requests done, tokens a second, acceptance.

It appears after a second, on a terminal only, and goes to standard error, so that a program's output stays clean.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from paceline.sequence import SequenceDelta, SpeculationCounts

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_DELAY_SECONDS = 1.0


class GenerationProgress:
    def __init__(self, num_requests: int, *, enabled: bool) -> None:
        self._num_requests = num_requests
        self._enabled = enabled
        self._started = time.monotonic()
        self._num_done = 0
        self._num_tokens = 0
        self._counts = SpeculationCounts()
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._show()
            self._bar.stop()

    def add(self, delta: SequenceDelta) -> None:
        self._num_tokens += len(delta.token_ids)
        if delta.speculation is not None:
            self._counts.add(delta.speculation)
        self._show()

    def finish_request(self) -> None:
        self._num_done += 1
        self._show()

    def _show(self) -> None:
        seconds = time.monotonic() - self._started
        if not self._enabled or seconds < _DELAY_SECONDS:
            return
        if self._bar is None:
            self._start()
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self._num_done, speed=self._speed(seconds))

    def _start(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True, emoji=False)
        if not console.is_terminal:
            self._enabled = False
            return
        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.fields[speed]}"))
        self._bar = Progress(TextColumn("Generating"), *columns, console=console)
        self._task = self._bar.add_task("generate", total=self._num_requests, speed="")
        self._bar.start()

    def _speed(self, seconds: float) -> str:
        speed = f"{self._num_tokens / seconds:,.0f} tok/s"
        if self._counts.num_drafts:
            speed += f", {self._counts.acceptance_rate:.0%} of drafts accepted"
        return speed
