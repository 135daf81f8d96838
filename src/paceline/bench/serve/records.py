"""What is stored of a run: one JSON object a line, and nothing that could be computed from another.

Line 1 is a RunHeader, then for each case of each arm its requests (Record) and, once all are answered, a CaseSpan.
Times of a record are microseconds since its own start; starts are microseconds since the run's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from paceline.bench.digests import Chain, first_edited, with_digest
from paceline.bench.serve.sse import Count
from paceline.errors import ConfigurationError

SCHEMA = 1
Place = Annotated[int, msgspec.Meta(ge=0, le=10**9)]  # in an order, from 0
Micros = Annotated[int, msgspec.Meta(ge=0, le=10**15)]
Rise = Annotated[float, msgspec.Meta(ge=0, le=1e15)]  # of a counter


class Load(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`users`: so many requests under way at any time. `rate`: Poisson arrivals, so many a second."""

    kind: Literal["users", "rate"]
    value: Annotated[float, msgspec.Meta(gt=0, le=1e9)]

    @property
    def label(self) -> str:
        if self.kind == "rate":
            return f"{self.value:g} req/s"
        return f"{self.value:g} user" + ("" if self.value == 1 else "s")


class Counts(msgspec.Struct, forbid_unknown_fields=True):
    """Speculation in numbers. `accepted_per_position[i]`: drafts of place i that were kept; `passes`: of the target,
    with drafts or without, the prompt's last one among them; None where the server does not say."""

    drafts: Count = 0
    draft_tokens: Count = 0
    accepted_tokens: Count = 0
    accepted_per_position: list[Count] = []
    passes: Count | None = None


class ArmInfo(msgspec.Struct, forbid_unknown_fields=True):
    """One side of a comparison: a server, and what is added to every request."""

    name: str
    url: str
    model: str
    server: str
    counting: str  # how tokens are counted: usage, logprobs, tokenizer, share
    fresh_prompts: str  # how prompts are kept out of the prefix cache: cache_salt, tag, none
    extra: dict[str, Any] = {}
    hardware: str = ""
    num_gpus: Annotated[int, msgspec.Meta(ge=1, le=10**6)] | None = None
    price_per_hour: Annotated[float, msgspec.Meta(gt=0, le=1e9)] | None = None  # US dollars


class RunHeader(msgspec.Struct, tag="run", tag_field="kind", forbid_unknown_fields=True):
    schema: int
    environment: dict[str, Any]
    options: dict[str, Any]
    arms: list[ArmInfo]
    baseline: str | None
    notes: list[str] = []
    digest: str | None = None  # of this line; the last field (digests.py)


class Reads(msgspec.Struct, forbid_unknown_fields=True):
    """How this client got to know when data arrived (arrival.py), over one case."""

    count: Count = 0
    own_time: Count = 0  # without a stamp of the kernel: the time at which they were read counts
    late: Count = 0  # read more than 10 ms after they had arrived
    longest_lag_us: Micros = 0  # between arrival and reading, where it is known


class CaseSpan(msgspec.Struct, tag="case", tag_field="kind", forbid_unknown_fields=True):
    """`counters`: by how much the server's counters rose while the case ran; empty if they cannot be read."""

    arm: str
    load: Load
    round: Place
    seed: int
    place: Place  # in the order of the whole run, from 0: who ran before whom
    start_us: Micros
    end_us: Micros
    counters: dict[str, Rise] = {}
    accepted_per_position: list[Rise] = []
    reads: Reads | None = None
    requests: Count | None = None  # how many there are of it in the file
    digest: str | None = None  # of all lines up to this one; the last field (digests.py)


class Record(msgspec.Struct, tag="request", tag_field="kind", omit_defaults=True, forbid_unknown_fields=True):
    """One request. `events`: [microseconds, tokens so far], an entry for each time that tokens came."""

    arm: str
    load: Load
    round: Place
    number: Place  # in the order of prompts of the round
    prompt: Place  # of the source, from 0
    category: str
    turn: Place
    start_us: Micros
    end_us: Micros = 0  # since start
    lag_us: int = 0  # how late it was sent, against its arrival time
    events: list[tuple[Micros, Count]] = []
    prompt_tokens: Count | None = None
    cached_tokens: Count | None = None
    completion_tokens: Count | None = None
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
    return line


class RawWriter:
    def __init__(self, path: Path, header: RunHeader) -> None:
        self.path = path
        self._file = path.open("wb")
        self._chain = Chain()
        self.write([header])

    def write(self, lines: Iterable[Line]) -> None:
        for line in lines:
            text = _encode(line)
            digest = self._chain.add(json.loads(text))
            self._file.write((text if isinstance(line, Record) else with_digest(text, digest)) + b"\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_raw(path: Path) -> Raw:
    """Raises ConfigurationError where the file is not such a run, with the line. A last line without an end was being
    written when the run was killed, and is left out."""
    from paceline.bench.serve.wholeness import problem

    try:
        with path.open("rb") as file:
            texts = list(enumerate(file, 1))
    except OSError as error:
        raise ConfigurationError(f"'{path}' cannot be read: {error.strerror or error}.") from None
    is_cut = bool(texts) and not texts[-1][1].endswith(b"\n")
    lines = [(number, _line(path, number, text)) for number, text in (texts[:-1] if is_cut else texts)]
    if not lines or not isinstance(header := lines[0][1], RunHeader):
        raise ConfigurationError(f"{path} does not begin with the header of a run of paceline bench serve.")
    if header.schema != SCHEMA:
        raise ConfigurationError(f"{path} is of another version: schema {header.schema}; this one reads {SCHEMA}.")
    if found := problem(lines):
        raise ConfigurationError(f"{path}, {found}.")
    if (edited := first_edited(text for _, text in (texts[:-1] if is_cut else texts))) is not None:
        raise ConfigurationError(
            f"{path}, line {edited}: it or a line before it was changed after it was written, so its figures are not "
            "those that were measured. Run it again."
        )
    spans = [line for _, line in lines if isinstance(line, CaseSpan)]
    return Raw(header, spans, [line for _, line in lines if isinstance(line, Record)], is_cut)
