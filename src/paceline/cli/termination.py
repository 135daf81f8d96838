"""SIGTERM ends a command as Ctrl-C does, with what it has kept and said; the exit status tells them apart."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

STATUS = 128 + signal.SIGTERM  # 143, what a shell says of a process that SIGTERM ended


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """Whatever waits for SIGINT (asyncio's runner, a KeyboardInterrupt) sees one; the status is 143 at the end."""
    if threading.current_thread() is not threading.main_thread():  # no other thread may set a handler
        yield
        return
    came = False

    def on_sigterm(number: int, frame: Any) -> None:
        nonlocal came
        came = True
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, on_sigterm)
    try:
        yield
    except KeyboardInterrupt:
        if came:
            raise typer.Exit(STATUS) from None
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
