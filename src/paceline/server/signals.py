"""The end of a server: signals as something to wait for, and a uvicorn that leaves them alone."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import uvicorn

from paceline.ending import leave, open_terminals

T = TypeVar("T")


class Server(uvicorn.Server):
    """uvicorn that leaves the signals to us: it would raise them again before the engine is shut down."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Stop:
    """SIGTERM, SIGINT and SIGHUP as something to wait for. SIGHUP (its terminal was closed) unless it is ignored, as
    under nohup."""

    def __init__(self) -> None:
        self._requested = asyncio.Event()
        self._again: Callable[[], None] = lambda: None
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            loop.add_signal_handler(signal.SIGHUP, self._on_hangup, open_terminals())

    def _on_hangup(self, terminals: list[int]) -> None:
        leave(terminals)
        self._on_signal()

    def _on_signal(self) -> None:
        if self._requested.is_set():
            self._again()
        self._requested.set()

    def on_second_request(self, action: Callable[[], None]) -> None:
        self._again = action

    async def unless_requested(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of `work`, or None, with the work cancelled, when a signal comes first."""
        working, waiting = asyncio.create_task(work), asyncio.create_task(self._requested.wait())
        try:
            await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
            return working.result() if working.done() else None
        finally:
            for task in (working, waiting):
                task.cancel()
            await asyncio.gather(working, waiting, return_exceptions=True)
