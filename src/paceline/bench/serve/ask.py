"""One request, from its first byte out to its last byte in, as a Record."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from paceline.bench.serve.counting import Tally, UsageTally
from paceline.bench.serve.http_stream import StreamClient
from paceline.bench.serve.record_relations import counts_problems, passes_problems, usage_problems
from paceline.bench.serve.records import Counts, Record
from paceline.bench.serve.sse import Chunk, EventReader, read_chunk
from paceline.errors import PacelineError

_ENCODE = msgspec.json.Encoder().encode
Clock = Callable[[], int]  # nanoseconds


@dataclass(slots=True)
class Listener:
    """What comes back for one record. `micros` count from its start."""

    tally: Tally
    started_ns: int
    pieces: list[str] = field(default_factory=list)
    finish_reason: str | None = None
    last: Chunk | None = None  # the last one with usage
    speculation: dict[str, Any] | None = None
    end_us: int = 0
    is_done: bool = False
    error: str | None = None
    _reader: EventReader = field(default_factory=EventReader)

    def on_data(self, now_ns: int, data: bytes) -> None:
        micros = (now_ns - self.started_ns) // 1000
        for payload in self._reader.feed(data):
            self.end_us = micros
            if payload == b"[DONE]":
                self.is_done = True
                continue
            chunk = read_chunk(payload)
            if chunk.error is not None:
                self.error = error_in_words(chunk.error)
                continue
            self.tally.add(micros, chunk)
            self._note(chunk)

    def _note(self, chunk: Chunk) -> None:
        text = chunk.text
        if text:
            self.pieces.append(text)
        if chunk.usage is not None:
            self.last = chunk
        if chunk.metrics is not None:
            self.speculation = chunk.metrics.get("speculative_decoding") or self.speculation
        for choice in chunk.choices:
            self.finish_reason = choice.finish_reason or self.finish_reason


def error_in_words(error: Any) -> str:
    message = error.get("message", error) if isinstance(error, dict) else error
    return str(message)[:500]


async def ask(client: StreamClient, path: str, body: dict[str, Any], tally: Tally, clock: Clock) -> Listener:
    """Never raises for what a server does: the listener carries the error. The text stays in `pieces`."""
    content = _ENCODE(body)
    listener = Listener(tally, clock())
    try:
        answered = await client.post(path, content, listener.on_data)
        if answered.status != 200:
            listener.error = f"status {answered.status}: {_error_text(answered.error_body)}"
        elif listener.error is None and not listener.is_done:
            listener.error = "the stream ended without [DONE]"
    except TimeoutError:
        listener.error = "no end of the answer within --timeout"
    except PacelineError as error:
        if not listener.is_done:  # after [DONE] all has been said, however the connection ends
            listener.error = str(error)
    if listener.error is not None and not listener.end_us:
        listener.end_us = (clock() - listener.started_ns) // 1000
    return listener


def _error_text(body: bytes) -> str:
    try:
        return error_in_words(msgspec.json.decode(body)["error"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return body.decode(errors="replace")[:500]


def fill(record: Record, listener: Listener, max_tokens: int | None = None) -> Record:
    """The record of what was heard; run after the case, since counting by text takes its time. An answer for which a
    server counts more tokens than `max_tokens`, which were asked for, or fewer than before, is an error: its figures
    would be anything. What else contradicts itself is left out, so that a record is what record_relations.py wants."""
    usage = listener.last.usage if listener.last is not None else None
    record.end_us = listener.end_us
    record.error = listener.error
    record.finish_reason = listener.finish_reason
    counted = usage.completion_tokens if usage is not None else 0
    if listener.error is None and max_tokens is not None and counted > max_tokens:
        record.error = f"the server counts {counted:,} tokens in an answer of at most {max_tokens:,} (usage)"
        return record
    record.events = listener.tally.resolve(usage.completion_tokens if usage else None)
    if listener.error is None and isinstance(listener.tally, UsageTally) and record.num_tokens > counted:
        record.error = f"the server counts {record.num_tokens:,} tokens, and {counted:,} at the end (usage)"
    if usage is not None:
        record.prompt_tokens, record.completion_tokens = usage.prompt_tokens, usage.completion_tokens
        record.cached_tokens = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else None
        if any(usage_problems(record)):
            record.cached_tokens = None
    if listener.error is None and not record.events:
        record.error = "an answer without tokens"
    record.text_hash = hashlib.blake2b("".join(listener.pieces).encode(), digest_size=8).hexdigest()
    record.speculation = speculation_counts(listener.speculation)
    if record.speculation is not None and any(passes_problems(record.speculation, record.completion_tokens)):
        record.speculation = None
    return record


def speculation_counts(metrics: dict[str, Any] | None) -> Counts | None:
    """`metrics.speculative_decoding` of an answer: vLLM's form (a histogram of drafts by how many were kept), or counts
    by position. None where they are neither, or contradict each other."""
    try:
        found = msgspec.convert(_counts(metrics), Counts) if metrics else None
        return None if found is None or any(counts_problems(found)) else found
    except (TypeError, ValueError, AttributeError, msgspec.ValidationError):
        return None


def _counts(metrics: dict[str, Any]) -> dict[str, Any]:
    histogram = metrics.get("acceptance_histogram")
    if histogram is not None:
        per_position = [sum(histogram[place + 1 :]) for place in range(len(histogram) - 1)]
        drafts, accepted = metrics.get("num_spec_steps", sum(histogram)), metrics.get("num_accepted_draft_tokens")
    else:
        per_position = metrics.get("num_accepted_tokens_per_pos") or []
        drafts, accepted = metrics.get("num_drafts", 0), metrics.get("num_accepted_tokens")
    return {
        "drafts": drafts,
        "draft_tokens": metrics.get("num_draft_tokens", 0),
        "accepted_tokens": sum(per_position) if accepted is None else accepted,
        "accepted_per_position": list(per_position),
        "passes": metrics.get("num_passes") or None,  # 0 where another runtime does not tell
    }


def now_ns() -> int:
    return time.perf_counter_ns()
