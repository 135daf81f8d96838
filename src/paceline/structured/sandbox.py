"""Sandbox: a process of its own that compiles a grammar first.

A small text can make a grammar that takes minutes, gigabytes, or the stack of whoever compiles it, and a
compiler in C++ cannot be interrupted. So a grammar is tried where it can be ended, and where nothing is lost
if it crashes. What passes here is compiled again by the engine, in about the same time: reading a compiled
grammar from its serialised form takes longer than that.

The process is started with the first grammar (that takes seconds: it imports torch) and ends with its parent,
or after IDLE_SECONDS without work. See sandbox_process.py for the other end.
"""

from __future__ import annotations

import logging
import select
import subprocess
import sys
import threading
import time

import msgspec

from paceline.structured.constraint import Constraint, GrammarError, NotNowError

logger = logging.getLogger(__name__)

COMPILE_SECONDS = 10.0
START_SECONDS = 120.0
IDLE_SECONDS = 600.0
MEMORY_BYTES = 2**30  # beyond what the process has when it is ready


class Verdict(msgspec.Struct):
    """None: the grammar is fine."""

    error: str | None = None


class Sandbox:
    """One question at a time; callers wait for each other."""

    def __init__(self, compile_seconds: float = COMPILE_SECONDS) -> None:
        self._compile_seconds = compile_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._closed = False

    def check(self, constraint: Constraint, tokenizer_info: str) -> None:
        """Raises GrammarError if the constraint does not compile, or not within the limits; NotNowError if the
        process cannot be started.

        `tokenizer_info` is xgrammar's, serialised; always the same.
        """
        with self._lock:
            verdict = self._verdict(constraint, tokenizer_info)
        if verdict.error is not None:
            raise GrammarError(verdict.error)

    def _verdict(self, constraint: Constraint, tokenizer_info: str) -> Verdict:
        process = self._running(tokenizer_info)
        try:
            return self._ask(process, constraint)
        except TimeoutError:
            self._kill()
            return Verdict(f"it takes more than {self._compile_seconds:g} s to compile; make it smaller.")
        except (OSError, EOFError):
            ended_idle = process.wait() == 0  # between our looking and our asking
            self._kill()
            if ended_idle:
                return self._verdict(constraint, tokenizer_info)
            return Verdict("it could not be compiled within the limits of memory and depth; make it smaller.")

    def close(self) -> None:
        self._closed = True
        self._kill()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def _running(self, tokenizer_info: str) -> subprocess.Popen[bytes]:
        if self._closed:
            raise NotNowError("the engine is shutting down.")
        if self._process is None or self._process.poll() is not None:
            self._kill()
            try:
                self._process = _start(self._compile_seconds, tokenizer_info)
            except (OSError, EOFError) as error:  # a TimeoutError is an OSError
                logger.error("The process that tries grammars did not start: %r", error)
                raise NotNowError("the process that tries grammars did not start; try again.") from error
        return self._process

    def _ask(self, process: subprocess.Popen[bytes], constraint: Constraint) -> Verdict:
        _write(process, msgspec.json.encode(constraint) + b"\n")
        return msgspec.json.decode(_read_line(process, self._compile_seconds), type=Verdict)

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()


def _start(compile_seconds: float, tokenizer_info: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "paceline.structured.sandbox_process"),
            *(f"--seconds={compile_seconds}", f"--bytes={MEMORY_BYTES}", f"--idle={IDLE_SECONDS}"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # xgrammar's warnings about a user's grammar are no news of this server
        start_new_session=True,  # a Ctrl-C in the terminal is the server's to handle
        bufsize=0,
    )
    try:
        _write(process, tokenizer_info.encode() + b"\n")
        _read_line(process, START_SECONDS)  # ready
    except BaseException:
        process.kill()
        process.wait()
        raise
    return process


def _write(process: subprocess.Popen[bytes], data: bytes) -> None:
    assert process.stdin is not None
    view = memoryview(data)
    while view:
        written = process.stdin.write(view)
        view = view[written or 0 :]


def _read_line(process: subprocess.Popen[bytes], seconds: float) -> bytes:
    """One line of output. TimeoutError if it does not come in time, EOFError if the process has ended."""
    assert process.stdout is not None
    deadline = time.monotonic() + seconds
    line = b""
    while not line.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
            raise TimeoutError
        piece = process.stdout.read(65536)
        if not piece:
            raise EOFError
        line += piece
    return line
