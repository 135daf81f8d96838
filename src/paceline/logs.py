"""Logging of the server and of its engine process: text or JSON lines on standard error, which never stop the server.

What is logged goes through one `LossyStream`: a full disk, or a reader that has gone or hangs, costs log lines and
nothing else. They are counted (`log_lines_dropped`), and the first line that gets through says how many are missing.
Prompts and answers are not in any log line unless `prompts` is set.
"""

from __future__ import annotations

import io
import json
import logging
import os
import select
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

Format = Literal["text", "json"]
Level = Literal["debug", "info", "warning", "error"]
FORMATS: tuple[Format, ...] = get_args(Format)
LEVELS: tuple[Level, ...] = get_args(Level)

_PIECE = 4096  # bytes that a pipe takes at once when it takes any (PIPE_BUF)
_PATIENCE_MS = 200  # for a reader that is slow; none once a line was dropped


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    format: Format = "text"
    level: Level = "info"
    prompts: bool = False  # prompts in the line of each request


def one_line(text: str) -> str:
    """What cannot be printed, line ends and terminal codes too, as escapes: no client's text looks like our line."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class TextFormatter(logging.Formatter):
    """`LEVEL logger: message` on one line; a traceback's lines are indented, so that none passes for a log line."""

    def format(self, record: logging.LogRecord) -> str:
        line = one_line(f"{record.levelname} {record.name}: {record.getMessage()}")
        if record.exc_info:
            trace = self.formatException(record.exc_info).split("\n")
            line = "\n".join((line, *(f"  {one_line(part)}" for part in trace)))
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object a line; what a caller put into `extra={"fields": {...}}` stands beside the message."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class LossyStream(io.TextIOBase):
    """Text to a file descriptor; what cannot be written at once is dropped, and counted by lines."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self._missing = 0
        self.num_dropped = 0

    def write(self, text: str) -> int:
        notice = f"({self._missing} log lines could not be written)\n" if self._missing else ""
        if self._send((notice + text).encode(errors="replace")):
            self._missing = 0
        else:
            lines = max(1, text.count("\n"))
            self._missing += lines
            self.num_dropped += lines
        return len(text)

    def _send(self, data: bytes) -> bool:
        try:
            while data:
                if not self._poll.poll(0 if self._missing else _PATIENCE_MS):
                    return False
                data = data[os.write(self._descriptor, data[:_PIECE]) :]
        except OSError:  # no space left, or nobody reads any more
            return False
        return True

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"


def set_up_logging(options: LogOptions) -> None:
    """Put a LossyStream in the place of sys.stderr, and log to it."""
    if sys.stderr is sys.__stderr__:  # else somebody has put something there on purpose
        sys.stderr = LossyStream(2)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if options.format == "json" else TextFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("paceline").setLevel(options.level.upper())


def tell(line: str, fields: Mapping[str, Any] | None = None) -> None:
    """To the person at the console; where the log is JSON, as a line of it."""
    handlers = logging.getLogger().handlers
    if any(isinstance(handler.formatter, JsonFormatter) for handler in handlers):
        logging.getLogger("paceline").info(line, extra={"fields": dict(fields or {})})
    else:
        print(line, file=sys.stderr, flush=True)


def num_dropped_lines() -> int:
    return sys.stderr.num_dropped if isinstance(sys.stderr, LossyStream) else 0
