"""The process behind sandbox.Sandbox: one constraint a line in, one verdict a line out.

The first line of standard input is xgrammar's tokenizer information; the first line of output says that it is
read. Then every constraint is compiled under an alarm and a limit of memory. The alarm's default action ends
the process even inside xgrammar, so that it cannot outlive a parent that was killed; the end of standard input
ends it when it is idle.
"""

from __future__ import annotations

import argparse
import os
import resource
import select
import signal
import sys
from typing import Any, BinaryIO

import msgspec
import psutil

from paceline.ending import leave_ending_to_parent
from paceline.structured.constraint import Constraint, GrammarError
from paceline.structured.sandbox import Verdict
from paceline.structured.store import compile_constraint, make_compiler


def main() -> None:
    parser = argparse.ArgumentParser(prog="paceline.structured.sandbox_process")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--idle", type=float, required=True)
    options = parser.parse_args()
    leave_ending_to_parent()
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what libraries print is no answer
    lines = sys.stdin.buffer
    compiler = _make_compiler(lines.readline())
    _limit_memory(options.bytes)
    answers.write(b"{}\n")
    while _next_comes(lines, options.idle) and (line := lines.readline()):
        answers.write(msgspec.json.encode(_judge(compiler, line, options.seconds)) + b"\n")


def _make_compiler(tokenizer_info: bytes) -> Any:
    import xgrammar

    return make_compiler(xgrammar.TokenizerInfo.deserialize_json(tokenizer_info.decode()))


def _limit_memory(extra: int) -> None:
    limit = psutil.Process().memory_info().vms + extra
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _next_comes(lines: BinaryIO, seconds: float) -> bool:
    """The parent sends one line and waits for its verdict, so nothing is ever left in a buffer."""
    return bool(select.select([lines], [], [], seconds)[0])


def _judge(compiler: Any, line: bytes, seconds: float) -> Verdict:
    signal.setitimer(signal.ITIMER_REAL, 2 * seconds)  # the parent is the one that measures
    try:
        compile_constraint(compiler, msgspec.json.decode(line, type=Constraint))
        return Verdict()
    except GrammarError as error:
        return Verdict(str(error))
    except MemoryError:
        return Verdict("it takes too much memory to compile; make it smaller.")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


if __name__ == "__main__":
    main()
