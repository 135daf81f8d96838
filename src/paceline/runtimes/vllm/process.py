"""VllmProcess: one `vllm serve`, started, listened to, and stopped with everything it started.

Contract
- It listens on 127.0.0.1 only, and asks for a key that is made for this run: Paceline stands in front.
- Its lines go to our standard error; the last ones are kept, so that a death can be explained.
- `stop` leaves no process: SIGTERM, then after `grace` seconds SIGKILL to the whole group. Should Paceline be killed,
  the kernel sends vLLM a SIGTERM.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import secrets
import signal
import socket
import sys
from collections import deque
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any

from paceline.errors import EngineDeadError
from paceline.runtimes.vllm.probe import environment

_LAST_LINES = 40
_SHOWN_LINES = 15
_PR_SET_PDEATHSIG = 1
_LINE_BYTES = 1 << 20


class VllmProcess:
    def __init__(self, argv: Sequence[str], variables: Mapping[str, str], *, port: int, quiet: bool = False) -> None:
        """`argv` must make it listen on 127.0.0.1:`port`. `quiet`: its lines are kept, not shown."""
        self._argv = tuple(argv)
        self._variables = dict(variables)
        self._quiet = quiet
        self._process: asyncio.subprocess.Process | None = None
        self._listening: asyncio.Task[None] | None = None
        self._lines: deque[str] = deque(maxlen=_LAST_LINES)
        self.key = secrets.token_urlsafe(24)
        self.url = f"http://127.0.0.1:{port}"

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Raises EngineDeadError if there is no such program."""
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=environment({"PYTHONUNBUFFERED": "1", **self._variables, "VLLM_API_KEY": self.key}),
                start_new_session=True,  # Ctrl-C is ours to pass on
                preexec_fn=_end_with_parent,
                limit=_LINE_BYTES,
            )
        except OSError as error:
            raise EngineDeadError(f"vLLM could not be started: {error}.") from None
        self._listening = asyncio.create_task(self._listen(self._process))

    async def wait_ended(self) -> None:
        """Until it has ended and its last line is read."""
        assert self._process is not None
        await self._process.wait()
        if self._listening is not None:
            await asyncio.shield(self._listening)

    def explain(self) -> str:
        """How it ended, and its last words."""
        status = self._process.returncode if self._process else None
        how = f"status {status}" if status is None or status >= 0 else f"signal {-status}"
        last = "\n".join(list(self._lines)[-_SHOWN_LINES:])
        return f"vLLM ended ({how})." + (f" Its last lines:\n{last}" if self._quiet and last else "")

    async def stop(self, grace: float, hurry: asyncio.Event | None = None) -> None:
        """Ask it to end, insist after `grace` seconds or when `hurry` is set. Harmless if it never started."""
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await _first((process.wait(), (hurry or asyncio.Event()).wait()), grace)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # its workers, if they outlived it
        await process.wait()
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await _readline(process.stdout):
            text = line.decode(errors="replace").rstrip("\n")
            self._lines.append(text)
            if not self._quiet:
                print(text, file=sys.stderr, flush=True)


async def _first(works: Iterable[Coroutine[Any, Any, Any]], seconds: float) -> None:
    tasks = [asyncio.create_task(work) for work in works]
    await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _readline(stream: asyncio.StreamReader) -> bytes:
    try:
        return await stream.readline()
    except ValueError:  # a line beyond every measure: what is there of it
        return await stream.read(_LINE_BYTES)


def _end_with_parent() -> None:
    """In the child, before vLLM starts. Linux only; elsewhere nothing happens."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])
