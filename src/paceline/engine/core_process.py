"""The engine in a process of its own; `async_engine.AsyncEngine` is the other end.

Contract
- Started as `python -m paceline.engine.core_process --commands URL --reports URL --factory MODULE:FUNCTION`,
  with the configuration as the first line of standard input.
- The first report is Ready or Failed. After Ready the loop alternates: take all commands, do one step, report.
- Standard input stays open as long as the parent lives. When it ends, this process ends, whatever it is doing:
  a parent that was killed leaves nothing behind.
- Exit status: 0 after Shutdown, 1 after Failed.

A subprocess and not multiprocessing: nothing is pickled, and the user's __main__ is not imported again.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Protocol

import zmq

from paceline.config import EngineConfig
from paceline.ending import leave_ending_to_parent
from paceline.engine import wire
from paceline.engine.heap import NO_TRIMMER, HeapTrimmer, malloc_trim
from paceline.engine.statistics import EngineStats
from paceline.errors import InvalidRequestError, PacelineError
from paceline.logs import LogOptions, set_up_logging
from paceline.sequence import EngineRequest, SequenceDelta

logger = logging.getLogger(__name__)

DEFAULT_FACTORY = "paceline.build:build_engine"  # by name: the engine itself knows no worker


class EngineLike(Protocol):
    """What the process needs of `Engine`; tests put a fake in its place."""

    def add_request(self, request: EngineRequest) -> None: ...
    def abort(self, request_id: str) -> None: ...
    def step(self) -> list[SequenceDelta]: ...
    def has_unfinished(self) -> bool: ...
    def stats(self) -> EngineStats: ...
    def describe(self) -> dict[str, str]: ...
    def shutdown(self) -> None: ...


EngineFactory = Callable[[EngineConfig], EngineLike]


class EngineLoop:
    """Take commands, step, report; one thread owns the engine and both sockets."""

    def __init__(
        self,
        engine: EngineLike,
        commands: zmq.Socket[bytes],
        send: Callable[[wire.Report], None],
        clock: Callable[[], float] = time.monotonic,
        trimmer: HeapTrimmer = NO_TRIMMER,
    ) -> None:
        self._engine = engine
        self._commands = commands
        self._send = send
        self._clock = clock
        self._trimmer = trimmer
        self._last_status = float("-inf")
        self._questions = 0
        self._stopped = False

    def run(self) -> None:
        while not self._stopped:
            self._take_commands()
            if self._engine.has_unfinished() and not self._stopped:
                self._step()
            self._report_status()
            self._trimmer.maybe_trim()

    def _take_commands(self) -> None:
        """Wait for a command only when there is nothing to compute."""
        idle_ms = 0 if self._engine.has_unfinished() else int(wire.HEARTBEAT_SECONDS * 1000)
        if not self._commands.poll(idle_ms):
            return
        while not self._stopped:
            try:
                message = self._commands.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._obey(wire.decode_command(message))

    def _obey(self, command: wire.Command) -> None:
        match command:
            case wire.Add(request):
                self._add(request)
            case wire.Abort(request_id):
                self._engine.abort(request_id)
            case wire.GetStats():
                self._questions += 1
            case wire.Shutdown():
                self._stopped = True

    def _add(self, request: EngineRequest) -> None:
        try:
            self._engine.add_request(request)
        except InvalidRequestError as error:
            self._send(wire.Rejected(request.request_id, str(error), error.param, error.code))

    def _step(self) -> None:
        deltas = self._engine.step()
        if deltas:
            self._send(wire.Deltas(deltas))
        self._trimmer.after_step()

    def _report_status(self) -> None:
        now = self._clock()
        if not self._questions and now - self._last_status < wire.HEARTBEAT_SECONDS:
            return
        self._send(wire.Status(self._engine.stats(), self._questions))
        self._questions = 0
        self._last_status = now


def serve(config: EngineConfig, factory: EngineFactory, commands_url: str, reports_url: str) -> int:
    """Build the engine, run it until Shutdown; the exit status."""
    context = zmq.Context()
    commands, reports = _connect(context, zmq.PULL, commands_url), _connect(context, zmq.PUSH, reports_url)

    def send(report: wire.Report) -> None:
        reports.send(wire.encode(report))

    try:
        engine = factory(config)
        # What is here now stays. To go through all of it again and again takes up to a tenth of a second each time,
        # in which no step starts.
        gc.collect()
        gc.freeze()
        send(wire.Ready(engine.describe()))
        # Where a GPU does the work this heap holds no tensors, and a trim would only delay a step.
        trimmer = HeapTrimmer(malloc_trim()) if config.device == "cpu" else NO_TRIMMER
        EngineLoop(engine, commands, send, trimmer=trimmer).run()
        engine.shutdown()
        return 0
    except Exception as error:
        if not isinstance(error, PacelineError):
            logger.exception("The engine process failed.")
        send(wire.failure(error))
        return 1
    finally:
        context.destroy(linger=2000)


def _connect(context: zmq.Context[zmq.Socket[bytes]], kind: int, url: str) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    socket.set_hwm(0)  # bounded by the tokens of the requests in flight; a full queue must not stop the engine
    socket.connect(url)
    return socket


def end_with_parent(lifeline: int) -> None:
    """Leave as soon as the other end of this file descriptor is closed, even in the middle of a step.

    The descriptor and not a file object: a thread that waits inside one keeps the interpreter from ending.
    """

    def wait() -> None:
        while os.read(lifeline, 1):
            pass
        os._exit(0)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()


def load_factory(name: str) -> EngineFactory:
    module, _, function = name.partition(":")
    factory: EngineFactory = getattr(importlib.import_module(module), function)
    return factory


def main() -> int:
    parser = argparse.ArgumentParser(prog="paceline.engine.core_process")
    for option in ("--commands", "--reports"):
        parser.add_argument(option, required=True)
    parser.add_argument("--factory", default=DEFAULT_FACTORY)
    parser.add_argument("--log-format", default="text")
    parser.add_argument("--log-level", default="info")
    options = parser.parse_args()
    leave_ending_to_parent()
    set_up_logging(LogOptions(format=options.log_format, level=options.log_level))
    config = wire.decode_config(sys.stdin.buffer.readline())
    end_with_parent(sys.stdin.fileno())
    return serve(config, load_factory(options.factory), options.commands, options.reports)


if __name__ == "__main__":
    sys.exit(main())
