"""Server-sent events of OpenAI-compatible servers: bytes -> chunks. Only the fields that are measured are read.

Each `data:` line is taken as one event, as every such server writes them.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from paceline.errors import PacelineError

Count = Annotated[int, msgspec.Meta(ge=0, le=10**12)]  # of tokens


class Details(msgspec.Struct):
    cached_tokens: Count | None = None


class Usage(msgspec.Struct):
    prompt_tokens: Count = 0
    completion_tokens: Count = 0
    prompt_tokens_details: Details | None = None


class Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class Logprobs(msgspec.Struct):
    content: list[msgspec.Raw] | None = None  # chat completions
    tokens: list[msgspec.Raw] | None = None  # completions


class Choice(msgspec.Struct):
    delta: Delta | None = None
    text: str | None = None
    logprobs: Logprobs | None = None
    finish_reason: str | None = None


class Chunk(msgspec.Struct):
    choices: list[Choice] = []
    usage: Usage | None = None
    metrics: dict[str, Any] | None = None
    error: Any = None

    @property
    def text(self) -> str:
        found = ""
        for choice in self.choices:
            if choice.delta is not None:
                found += choice.delta.reasoning_content or choice.delta.reasoning or ""
                found += choice.delta.content or ""
            found += choice.text or ""
        return found

    @property
    def num_logprobs(self) -> int:
        parts = [choice.logprobs for choice in self.choices if choice.logprobs is not None]
        return sum(len(part.content or part.tokens or ()) for part in parts)


class BadEventError(PacelineError):
    """An event that is no chunk."""


_DECODER = msgspec.json.Decoder(Chunk)


def read_chunk(payload: bytes) -> Chunk:
    try:
        return _DECODER.decode(payload)
    except msgspec.DecodeError as error:
        raise BadEventError(f"an event is not a chunk of an answer ({error}): {payload[:200]!r}") from None


class EventReader:
    """Payloads of `data:` lines, however the bytes are cut. `[DONE]` is a payload like any other."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        if self._rest:
            data = self._rest + data
        *lines, self._rest = data.split(b"\n")
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]
