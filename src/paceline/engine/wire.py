"""The words between the API process and the engine process: msgspec structs, MessagePack on the wire.

Commands go to the engine, reports come back; each side decodes one tagged union and nothing else, so no
message can name code to run. `SamplingParams` crosses by value and is not validated a second time.

The configuration crosses once, as the first line of the engine's standard input (`encode_config`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from paceline.config import EngineConfig
from paceline.engine.statistics import EngineStats
from paceline.errors import (
    ConfigurationError,
    EngineDeadError,
    InvalidRequestError,
    PacelineError,
    UnsupportedModelError,
)
from paceline.sequence import EngineRequest, SequenceDelta


class Add(msgspec.Struct, tag="add"):
    request: EngineRequest


class Abort(msgspec.Struct, tag="abort"):
    request_id: str


class GetStats(msgspec.Struct, tag="get_stats"):
    """Ask for one Status at once."""


class Shutdown(msgspec.Struct, tag="shutdown"):
    pass


Command = Add | Abort | GetStats | Shutdown


class Ready(msgspec.Struct, tag="ready"):
    """The model is loaded; `description` is the engine's resolved configuration."""

    description: dict[str, str]


class Failed(msgspec.Struct, tag="failed"):
    """The engine could not start, or died; the last report of a process."""

    kind: str
    message: str


class Rejected(msgspec.Struct, tag="rejected"):
    """The engine refused one request; no delta of it follows."""

    request_id: str
    message: str
    param: str | None = None
    code: str | None = None

    def as_error(self) -> InvalidRequestError:
        return InvalidRequestError(self.message, param=self.param, code=self.code)


class Deltas(msgspec.Struct, tag="deltas"):
    """The output of one step."""

    deltas: list[SequenceDelta]


class Status(msgspec.Struct, tag="status"):
    """Heartbeat: sent between two steps at most every HEARTBEAT_SECONDS, and when asked for."""

    stats: EngineStats
    answers: int = 0  # GetStats commands that were answered by this report


Report = Ready | Failed | Rejected | Deltas | Status

HEARTBEAT_SECONDS = 0.5

encode = msgspec.msgpack.Encoder().encode
decode_command = msgspec.msgpack.Decoder(Command).decode
decode_report = msgspec.msgpack.Decoder(Report).decode

_KINDS: dict[str, type[PacelineError]] = {
    kind.__name__: kind for kind in (ConfigurationError, UnsupportedModelError, EngineDeadError)
}


def failure(error: BaseException) -> Failed:
    """Keep the kind of an error raised on purpose; anything else is the engine's own fault."""
    for kind in type(error).__mro__:
        if kind.__name__ in _KINDS:
            return Failed(kind=kind.__name__, message=str(error))
    return Failed(kind=EngineDeadError.__name__, message=f"{type(error).__name__}: {error}")


def failure_as_error(failed: Failed) -> PacelineError:
    return _KINDS.get(failed.kind, EngineDeadError)(failed.message)


def encode_config(config: EngineConfig) -> bytes:
    """One line of JSON."""
    return msgspec.json.encode(config, enc_hook=_path_to_text)


def decode_config(line: bytes) -> EngineConfig:
    return msgspec.json.decode(line, type=EngineConfig, dec_hook=_text_to_path)


def _path_to_text(value: object) -> str:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no form on the wire.")


def _text_to_path(kind: type, value: Any) -> Any:
    return Path(value) if kind is Path else value
