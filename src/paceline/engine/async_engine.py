"""AsyncEngine: the engine process as an asyncio object, the server's side of `core_process`.

Contract
- `start` returns when the model is loaded; it raises the same error that building the engine here would raise.
- `generate` yields a request's deltas until every one of its sequences has finished. It raises
  InvalidRequestError if the engine refuses the request, EngineDeadError as soon as the engine is gone.
- Leaving a `generate` early (aclose, cancellation, an error in its body) aborts the request in the engine.
- Nothing waits for an engine that is dead. `is_healthy` turns false when it died, or made no progress for
  `stall_seconds` (p42): no report at all, or reports of work at hand without a step or a delta. Then `is_stalled`
  is true, `generate` raises EngineStalledError, and the log says so once, and once when the engine goes on.
- `shutdown` leaves no process and no file. An engine that does not end within STOP_SECONDS of being asked is killed,
  one that had not moved for as long before is given STUCK_SECONDS; the log says so.

The endpoints lie in a fresh private directory, so that any number of servers share a host. It is removed as
soon as both sides are connected: nothing is left behind, however either side ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec
import zmq
import zmq.asyncio

from paceline.config import EngineConfig
from paceline.engine import wire
from paceline.engine.core_process import DEFAULT_FACTORY
from paceline.engine.endpoints import endpoint, private_directory
from paceline.engine.report_reader import ReportReader
from paceline.engine.statistics import EngineStats
from paceline.errors import EngineDeadError, EngineStalledError, PacelineError
from paceline.logs import LogOptions
from paceline.sequence import EngineRequest, SequenceDelta

logger = logging.getLogger(__name__)

STALL_SECONDS = 60.0  # without a report: a step of a healthy engine is far shorter
STOP_SECONDS = 5.0
STUCK_SECONDS = 1.0
_STATS_SECONDS = 2.0
SECRETS = ("PACELINE_API_KEYS",)  # in the environment, and none of the engine's business
_WATCH_SECONDS = 0.5  # between two looks at its progress

_Event = SequenceDelta | PacelineError


class AsyncEngine:
    def __init__(self, process: asyncio.subprocess.Process, home: Path, stall_seconds: float) -> None:
        self._process = process
        self._home = home
        self._stall_seconds = stall_seconds
        self._context = zmq.asyncio.Context()
        self._commands = self._bind(zmq.PUSH, "commands")
        self._requests: dict[str, asyncio.Queue[_Event]] = {}
        self._apart: set[str] = set()  # requests whose steps are not merged
        reports = self._bind(zmq.PULL, "reports")
        self._reader = ReportReader(reports, self._take, self._note_progress, self._apart)
        self._questions: list[asyncio.Future[EngineStats]] = []
        self._ready: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()
        self._stats = EngineStats()
        self._last_progress = time.monotonic()
        self._error: PacelineError | None = None
        self._died = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def start(
        cls,
        config: EngineConfig,
        *,
        factory: str = DEFAULT_FACTORY,
        stall_seconds: float = STALL_SECONDS,
        logs: LogOptions | None = None,
    ) -> AsyncEngine:
        logs = logs or LogOptions()
        home = private_directory()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "paceline.engine.core_process", "--factory", factory),
            *("--commands", endpoint(home, "commands"), "--reports", endpoint(home, "reports")),
            *("--log-format", logs.format, "--log-level", logs.level),
            stdin=asyncio.subprocess.PIPE,
            env={name: value for name, value in os.environ.items() if name not in SECRETS},
            start_new_session=True,  # a Ctrl-C in the terminal is the server's to handle
        )
        engine = cls(process, home, stall_seconds)
        try:
            await engine._begin(config)
        except BaseException:
            await engine.shutdown()
            raise
        return engine

    async def _begin(self, config: EngineConfig) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(wire.encode_config(config) + b"\n")
        reader = asyncio.create_task(self._read_reports())
        self._tasks = [reader, asyncio.create_task(self._watch_process(reader))]
        await asyncio.shield(self._ready)  # a cancelled start must not cancel the answer
        self._tasks.append(asyncio.create_task(self._watch_progress()))
        await self._ask()  # answered: both sockets are connected and need their files no more
        shutil.rmtree(self._home, ignore_errors=True)

    # What the server calls

    async def generate(self, request: EngineRequest) -> AsyncGenerator[SequenceDelta, None]:
        self._check_alive()
        if self.is_stalled:
            raise EngineStalledError(self._idle_seconds)
        queue: asyncio.Queue[_Event] = asyncio.Queue()
        self._requests[request.request_id] = queue
        if request.wants_steps:
            self._apart.add(request.request_id)
        unfinished = request.sampling_params.n
        try:
            self._send(wire.Add(request))
            while unfinished:
                event = await queue.get()
                if isinstance(event, PacelineError):
                    unfinished = 0
                    raise event
                unfinished -= event.finish_reason is not None
                yield event
        finally:
            self._requests.pop(request.request_id, None)
            self._apart.discard(request.request_id)
            if unfinished:
                self.abort(request.request_id)

    def abort(self, request_id: str) -> None:
        """Takes effect before the engine's next step."""
        if self._error is None:
            self._send(wire.Abort(request_id))

    async def stats(self) -> EngineStats:
        """The counters now; those of the last heartbeat if a long step keeps the engine from answering."""
        self._check_alive()
        try:
            return await asyncio.wait_for(self._ask(), _STATS_SECONDS)
        except TimeoutError:
            return self._stats

    async def describe(self) -> dict[str, str]:
        return await asyncio.shield(self._ready)

    @property
    def is_healthy(self) -> bool:
        return self._error is None and not self.is_stalled

    @property
    def is_stalled(self) -> bool:
        """It lives and makes no progress."""
        return self._error is None and self._idle_seconds >= self._stall_seconds

    @property
    def stalled_seconds(self) -> float | None:
        """Since its last progress, if it has stalled."""
        return self._idle_seconds if self.is_stalled else None

    @property
    def _idle_seconds(self) -> float:
        return time.monotonic() - self._last_progress

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait_dead(self) -> None:
        """Return when the engine has died."""
        await self._died.wait()

    async def shutdown(self) -> None:
        """End the engine process: ask, then kill; requests in flight fail with EngineDeadError."""
        loading = not self._ready.done()
        idle_seconds = self._idle_seconds
        patience = STOP_SECONDS if idle_seconds < STOP_SECONDS else STUCK_SECONDS
        if self._error is None:
            self._send(wire.Shutdown())
            self._fail(EngineDeadError("The engine was shut down."))
        if loading:  # it takes no commands
            await self._reap(0.0)
        elif not await self._reap(patience):
            logger.warning(
                "The engine (process %d) did not end within %g s of being asked to, and was killed; its last progress "
                "was %.0f s before that.",
                self.pid,
                patience,
                idle_seconds,
            )
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._context.destroy(linger=0)
        shutil.rmtree(self._home, ignore_errors=True)

    # How it works

    def _bind(self, kind: int, name: str) -> zmq.asyncio.Socket:
        socket = self._context.socket(kind)
        socket.set_hwm(0)
        socket.bind(endpoint(self._home, name))
        return socket

    def _send(self, command: wire.Command) -> None:
        self._commands.send(wire.encode(command))  # without a limit on the queue this is done at once

    def _ask(self) -> asyncio.Future[EngineStats]:
        answer: asyncio.Future[EngineStats] = asyncio.get_running_loop().create_future()
        self._questions.append(answer)
        self._send(wire.GetStats())
        return answer

    def _check_alive(self) -> None:
        if self._error is not None:
            raise EngineDeadError(str(self._error))

    async def _read_reports(self) -> None:
        """Cancelled when the process ends; the reader's `drain` hands out what it has read by then."""
        try:
            await self._reader.run()
        except msgspec.MsgspecError as error:
            self._fail(EngineDeadError(f"The engine process sent what nobody understands: {error}"))

    def _note_progress(self, report: wire.Report) -> None:
        if self._is_progress(report):
            self._last_progress = time.monotonic()

    def _is_progress(self, report: wire.Report) -> bool:
        """A heartbeat shows life; with work at hand it takes a step as well."""
        if not isinstance(report, wire.Status):
            return True
        now = report.stats
        return now.num_steps != self._stats.num_steps or now.num_running + now.num_waiting == 0

    def _take(self, report: wire.Report) -> None:
        match report:
            case wire.Deltas(deltas):
                for delta in deltas:
                    self._deliver(delta.request_id, delta)
            case wire.Rejected(request_id):
                self._deliver(request_id, report.as_error())
            case wire.Status(stats, answers):
                self._stats = stats
                self._answer(answers)
            case wire.Ready(description):
                self._ready.set_result(description)
            case wire.Failed():
                self._fail(wire.failure_as_error(report))

    def _deliver(self, request_id: str, event: _Event) -> None:
        queue = self._requests.get(request_id)
        if queue is not None:  # none: it was aborted while this was on its way
            queue.put_nowait(event)

    def _answer(self, count: int) -> None:
        for answer in self._questions[:count]:
            if not answer.done():
                answer.set_result(self._stats)
        del self._questions[:count]

    async def _watch_process(self, reader: asyncio.Task[None]) -> None:
        status = await self._process.wait()
        reader.cancel()
        with contextlib.suppress(msgspec.MsgspecError):  # half a message, of a process that was killed
            await self._reader.drain(lambda: self._error is not None)
        self._fail(EngineDeadError(f"The engine process ended {_how(status)}."))

    async def _watch_progress(self) -> None:
        was_stalled = False
        while self._error is None:
            if self.is_stalled and not was_stalled:
                logger.error(
                    "The engine (process %d) has made no progress for %.0f s: /health is 503, and new requests get a "
                    "503 (engine_stalled) until it goes on.",
                    self.pid,
                    self._idle_seconds,
                )
            elif was_stalled and not self.is_stalled:
                logger.warning("The engine goes on.")
            was_stalled = self.is_stalled
            await asyncio.sleep(_WATCH_SECONDS)

    def _fail(self, error: PacelineError) -> None:
        if self._error is not None:
            return
        self._error = error
        if not self._ready.done():
            self._ready.set_exception(error)
            self._ready.exception()  # asyncio need not report it: `start` does, or was cancelled
        for queue in self._requests.values():
            queue.put_nowait(EngineDeadError(str(error)))
        for answer in self._questions:
            if not answer.done():
                answer.set_exception(EngineDeadError(str(error)))
        self._died.set()

    async def _reap(self, patience: float) -> bool:
        """Whether it ended by itself."""
        try:
            await asyncio.wait_for(self._process.wait(), patience)
            return True
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
            return False


def _how(status: int) -> str:
    if status == -signal.SIGKILL:
        return (
            "by signal 9: somebody killed it, or the kernel did for want of memory (dmesg, or the container's events, "
            "say which). Then give it more memory, or lower --kv-cache-memory-bytes or --max-model-len"
        )
    return f"by signal {-status}" if status < 0 else f"with status {status}"
