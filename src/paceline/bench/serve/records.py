"""What is stored of a run: one JSON object a line, and nothing that could be computed from another.

Line 1 is a RunHeader, then for each case of each arm its requests (Record) and, once all are answered, a CaseSpan.
Times of a record are microseconds since its own start; starts are microseconds since the run's.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from paceline.bench.serve.sse import Count
from paceline.errors import ConfigurationError

SCHEMA = 1


class Load(msgspec.Struct, frozen=True):
    """`users`: so many requests under way at any time. `rate`: Poisson arrivals, so many a second."""

    kind: str
    value: float

    @property
    def label(self) -> str:
        if self.kind == "rate":
            return f"{self.value:g} req/s"
        return f"{self.value:g} user" + ("" if self.value == 1 else "s")


class Counts(msgspec.Struct):
    """Speculation in numbers. `accepted_per_position[i]`: drafts of place i that were kept; `passes`: of the target,
    with drafts or without, the prompt's last one among them; None where the server does not say."""

    drafts: Count = 0
    draft_tokens: Count = 0
    accepted_tokens: Count = 0
    accepted_per_position: list[Count] = []
    passes: Count | None = None


class ArmInfo(msgspec.Struct):
    """One side of a comparison: a server, and what is added to every request."""

    name: str
    url: str
    model: str
    server: str
    counting: str  # how tokens are counted: usage, logprobs, tokenizer, share
    fresh_prompts: str  # how prompts are kept out of the prefix cache: cache_salt, tag, none
    extra: dict[str, Any] = {}
    hardware: str = ""
    num_gpus: int | None = None
    price_per_hour: float | None = None  # US dollars


class RunHeader(msgspec.Struct, tag="run", tag_field="kind"):
    schema: int
    environment: dict[str, Any]
    options: dict[str, Any]
    arms: list[ArmInfo]
    baseline: str | None
    notes: list[str] = []


class Reads(msgspec.Struct):
    """How this client got to know when data arrived (arrival.py), over one case."""

    count: int = 0
    own_time: int = 0  # without a stamp of the kernel: the time at which they were read counts
    late: int = 0  # read more than 10 ms after they had arrived
    longest_lag_us: int = 0  # between arrival and reading, where it is known


class CaseSpan(msgspec.Struct, tag="case", tag_field="kind"):
    """`counters`: by how much the server's counters rose while the case ran; empty if they cannot be read."""

    arm: str
    load: Load
    round: int
    seed: int
    place: int  # in the order of the whole run, from 0: who ran before whom
    start_us: int
    end_us: int
    counters: dict[str, float] = {}
    accepted_per_position: list[float] = []
    reads: Reads | None = None
    requests: int | None = None  # how many there are of it in the file


class Record(msgspec.Struct, tag="request", tag_field="kind", omit_defaults=True):
    """One request. `events`: [microseconds, tokens so far], an entry for each time that tokens came."""

    arm: str
    load: Load
    round: int
    number: int  # place in the order of prompts of the round
    prompt: int  # line of the source, from 0
    category: str
    turn: int
    start_us: int
    end_us: int = 0  # since start
    lag_us: int = 0  # how late it was sent, against its arrival time
    events: list[tuple[int, int]] = []
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: str | None = None
    text_hash: str | None = None
    speculation: Counts | None = None
    error: str | None = None

    @property
    def num_tokens(self) -> int:
        return self.events[-1][1] if self.events else 0


Line = RunHeader | CaseSpan | Record
_DECODER = msgspec.json.Decoder(RunHeader | CaseSpan | Record)
_encode = msgspec.json.Encoder().encode


class Raw(msgspec.Struct):
    """A run, as it lies in its file."""

    header: RunHeader
    spans: list[CaseSpan]
    records: list[Record]
    is_cut: bool = False  # its last line has no end, and was left out


def _line(path: Path, number: int, text: bytes) -> Line:
    try:
        line: Line = _DECODER.decode(text)
    except msgspec.DecodeError as error:
        raise ConfigurationError(
            f"{path} is not a requests.jsonl of paceline bench serve: line {number}: {error}."
        ) from None
    if isinstance(line, Record) and (problem := _problem(line)):
        raise ConfigurationError(f"{path}, line {number}: {problem}.")
    return line


def _problem(record: Record) -> str:
    """Why no figure can be derived from it; '' if one can."""
    if record.error is None and not record.events:
        return "a request that neither failed nor has events (when how many tokens came)"
    before = (0, 0)
    for micros, tokens in record.events:
        if micros < before[0] or tokens <= before[1]:
            return f"events must rise in time and in tokens, and [{micros}, {tokens}] comes after {list(before)}"
        before = (micros, tokens)
    return ""


class RawWriter:
    def __init__(self, path: Path, header: RunHeader) -> None:
        self.path = path
        self._file = path.open("wb")
        self.write([header])

    def write(self, lines: Iterable[Line]) -> None:
        for line in lines:
            self._file.write(_encode(line) + b"\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_raw(path: Path) -> Raw:
    """Raises ConfigurationError where the file is not such a run, with the line. A last line without an end was being
    written when the run was killed, and is left out."""
    from paceline.bench.serve.wholeness import problem

    with path.open("rb") as file:
        texts = list(enumerate(file, 1))
    is_cut = bool(texts) and not texts[-1][1].endswith(b"\n")
    lines = [(number, _line(path, number, text)) for number, text in (texts[:-1] if is_cut else texts)]
    if not lines or not isinstance(header := lines[0][1], RunHeader):
        raise ConfigurationError(f"{path} does not begin with the header of a run of paceline bench serve.")
    if header.schema != SCHEMA:
        raise ConfigurationError(f"{path} is of another version: schema {header.schema}; this one reads {SCHEMA}.")
    if found := problem(lines):
        raise ConfigurationError(f"{path}, {found}.")
    spans = [line for _, line in lines if isinstance(line, CaseSpan)]
    return Raw(header, spans, [line for _, line in lines if isinstance(line, Record)], is_cut)
