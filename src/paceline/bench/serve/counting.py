"""How many tokens had come at which moment (p40: a chunk may carry several, so chunks are never counted).

usage      the server says in every chunk how many tokens there are so far (continuous_usage_stats): exact
logprobs   one entry a token comes with every chunk: exact, and some work for the server
tokenizer  the text so far is tokenised here, after the case: exact up to how a text can be cut
share      the total of `usage` is spread over the chunks by their characters: an estimate, and said so
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from paceline.bench.serve.sse import Chunk

METHODS = ("usage", "logprobs", "tokenizer", "share")
CountTokens = Callable[[str], int]


class Tally(Protocol):
    """Tokens of one answer. `add` runs while streams are timed; `resolve` once they have ended."""

    def add(self, micros: int, chunk: Chunk) -> None: ...

    def resolve(self, total: int | None) -> list[tuple[int, int]]:
        """[(microseconds, tokens so far)]; `total`: completion_tokens of the final usage, if it came."""
        ...


class _Running:
    """usage and logprobs: known at once."""

    def __init__(self) -> None:
        self._events: list[tuple[int, int]] = []
        self._count = 0

    def _reached(self, micros: int, count: int) -> None:
        if count > self._count:
            self._count = count
            if self._events and self._events[-1][0] == micros:
                self._events.pop()
            self._events.append((micros, count))

    def resolve(self, total: int | None) -> list[tuple[int, int]]:
        return self._events


class UsageTally(_Running):
    def add(self, micros: int, chunk: Chunk) -> None:
        if chunk.usage is not None:
            self._reached(micros, chunk.usage.completion_tokens)


class LogprobsTally(_Running):
    def add(self, micros: int, chunk: Chunk) -> None:
        self._reached(micros, self._count + chunk.num_logprobs)


class TextTally:
    """tokenizer and share: by the text that came."""

    def __init__(self, count_tokens: CountTokens | None) -> None:
        self._pieces: list[tuple[int, str]] = []
        self._count_tokens = count_tokens

    def add(self, micros: int, chunk: Chunk) -> None:
        text = chunk.text
        if not text:
            return
        if self._pieces and self._pieces[-1][0] == micros:
            text = self._pieces.pop()[1] + text
        self._pieces.append((micros, text))

    def resolve(self, total: int | None) -> list[tuple[int, int]]:
        texts = [text for _, text in self._pieces]
        if self._count_tokens is not None:
            counts = _counted(texts, self._count_tokens)
        else:
            counts = shared([len(text) for text in texts], total or 0)
        found: list[tuple[int, int]] = []
        for (micros, _), count in zip(self._pieces, counts, strict=True):
            if count > (found[-1][1] if found else 0):
                found.append((micros, count))
        return found


def _counted(texts: Sequence[str], count_tokens: CountTokens) -> list[int]:
    so_far, counts = "", []
    for text in texts:
        so_far += text
        counts.append(count_tokens(so_far))
    return counts


def shared(sizes: Sequence[int], total: int) -> list[int]:
    """Running counts that end at `total`: one for each entry first, the rest by size."""
    if not sizes:
        return []
    if total <= len(sizes):
        return [min(total, place + 1) for place in range(len(sizes))]
    spare, whole, so_far = total - len(sizes), sum(sizes), 0
    counts = []
    for place, size in enumerate(sizes):
        so_far += size
        counts.append(place + 1 + round(spare * so_far / whole))
    return counts


def make_tally(method: str, count_tokens: CountTokens | None) -> Tally:
    if method == "usage":
        return UsageTally()
    if method == "logprobs":
        return LogprobsTally()
    return TextTally(count_tokens if method == "tokenizer" else None)


def request_fields(method: str, endpoint: str = "chat") -> dict[str, Any]:
    """What a request must ask for, so that tokens can be counted so. Of log-probabilities completions take a number."""
    options: dict[str, Any] = {"include_usage": True}
    if method == "usage":
        options["continuous_usage_stats"] = True
    fields: dict[str, Any] = {"stream": True, "stream_options": options}
    if method == "logprobs":
        fields["logprobs"] = True if endpoint == "chat" else 1
    return fields
