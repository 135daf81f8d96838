"""Ctrl-C at a moment when the state is whole: while a step is half done it is kept until the step is done."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Raises KeyboardInterrupt for SIGINT and SIGTERM; inside `deferred`, at its end."""

    def __init__(self) -> None:
        self._busy = 0
        self._pending = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Only in the main thread: signals are its own."""
        before = {number: signal.signal(number, self._receive) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

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

    def _receive(self, _number: int, _frame: FrameType | None) -> None:
        if self._busy:
            self._pending = True
        else:
            raise KeyboardInterrupt
