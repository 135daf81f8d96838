"""Signals that end a command: SIGTERM, and SIGHUP where its terminal was closed, end it as Ctrl-C does.

A signal that is ignored when the command starts stays ignored: SIGHUP under nohup, and SIGINT in a job that a script
started with `&`, which is therefore never what another signal is turned into.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

ENDING = (signal.SIGTERM, signal.SIGHUP)
Interrupt = Callable[[], None]
_OUTPUTS = (1, 2)
_interrupts: list[Interrupt] = []  # innermost last


@contextmanager
def interrupted_by(interrupt: Interrupt) -> Iterator[None]:
    """Inside, a signal of `ENDING` calls `interrupt` where it would raise KeyboardInterrupt at whatever line runs."""
    _interrupts.append(interrupt)
    try:
        yield
    finally:
        _interrupts.pop()


@contextmanager
def receiving(receive: Callable[[int], None], numbers: Sequence[int]) -> Iterator[None]:
    """`receive` is called for those of the signals that are not ignored. Does nothing outside of the main thread, which
    alone may set handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    terminals = open_terminals()

    def on_signal(number: int, frame: object) -> None:
        if number == signal.SIGHUP:
            leave(terminals)
        receive(number)

    wanted = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, on_signal) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def exit_status(number: int) -> int:
    """What a shell says of a process that the signal ended: 143 for SIGTERM, 129 for SIGHUP."""
    return 128 + number


def leave_ending_to_parent() -> None:
    """For a process that another one starts: these signals reach whole groups, and the parent decides and ends us."""
    for number in (signal.SIGINT, *ENDING):
        signal.signal(number, signal.SIG_IGN)


class Ending:
    """Which signal came, if any did."""

    def __init__(self) -> None:
        self.number: int | None = None

    @property
    def status(self) -> int | None:
        return None if self.number is None else exit_status(self.number)

    def receive(self, number: int) -> None:
        self.number = number
        if _interrupts:
            _interrupts[-1]()
        else:
            raise KeyboardInterrupt


def open_terminals() -> list[int]:
    """Which of the outputs are one."""
    return [output for output in _OUTPUTS if os.isatty(output)]


def leave(terminals: Sequence[int]) -> None:
    """What is written to a closed terminal from here on would be an error, and what is to be kept would not be."""
    for output in terminals:
        with suppress(OSError):
            if not os.isatty(output):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, output)
                os.close(nowhere)
