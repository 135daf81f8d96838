"""Ctrl-C at a moment when the state is whole: while a step is half done it is kept until the step is done."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from paceline.ending import ENDING, exit_status, receiving


class Interrupts:
    """Raises KeyboardInterrupt for SIGINT, SIGTERM and SIGHUP; inside `deferred`, at its end."""

    def __init__(self) -> None:
        self._busy = 0
        self._pending = False
        self._number: int | None = None

    @property
    def status(self) -> int | None:
        """Exit status, where another signal than Ctrl-C's came."""
        return exit_status(self._number) if self._number in ENDING else None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Only in the main thread: signals are its own. Those that are ignored stay ignored."""
        with receiving(self._receive, (signal.SIGINT, *ENDING)):
            yield

    @contextmanager
    def deferred(self) -> Iterator[None]:
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1
        if self._pending and not self._busy:
            self._pending = False
            raise KeyboardInterrupt

    def _receive(self, number: int) -> None:
        self._number = number
        if self._busy:
            self._pending = True
        else:
            raise KeyboardInterrupt
