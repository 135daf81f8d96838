"""What a request returned, in vLLM's shape, and how it is put together from the engine's deltas.

`OutputBuilder` collects the deltas of one request; `build` may be asked at any time and is final once every
answer has a finish_reason. A request that failed keeps what it had: finish_reason "error" and `error` in words.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from paceline.plan import TokenLogprobs
from paceline.sampling_params import SamplingParams
from paceline.sequence import SequenceDelta, SpeculationCounts


class TokenText(Protocol):
    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...


@dataclass(slots=True)
class Logprob:
    logprob: float
    rank: int | None = None  # 1: the likeliest
    decoded_token: str | None = None


@dataclass(slots=True)
class CompletionOutput:
    """One answer. `logprobs` holds a dict a token: token id to Logprob, the emitted token always among them."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None  # stop, length, abort, error; None: not finished
    stop_reason: int | str | None = None
    error: str | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestMetrics:
    """Times are seconds of time.time(); the speculation counters sum over the request's answers."""

    arrival_time: float
    first_token_time: float | None = None
    finished_time: float | None = None
    num_cached_tokens: int = 0
    speculative_decoding: SpeculationCounts = field(default_factory=SpeculationCounts)


@dataclass(slots=True)
class RequestOutput:
    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None  # None for the first token: nothing is before it

    @property
    def num_cached_tokens(self) -> int:
        return self.metrics.num_cached_tokens


class OutputBuilder:
    def __init__(
        self,
        request_id: str,
        prompt: str | None,
        prompt_token_ids: list[int],
        params: SamplingParams,
        tokenizer: TokenText | None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._tokenizer = tokenizer
        self._clock = clock
        with_logprobs = params.logprobs is not None
        self.output = RequestOutput(
            request_id=request_id,
            prompt=prompt,
            prompt_token_ids=prompt_token_ids,
            outputs=[_empty(index, with_logprobs) for index in range(params.n)],
            finished=False,
            metrics=RequestMetrics(arrival_time=clock()),
            prompt_logprobs=None if params.prompt_logprobs is None else [None],
        )

    def add(self, delta: SequenceDelta) -> None:
        answer, metrics = self.output.outputs[delta.index], self.output.metrics
        answer.token_ids += delta.token_ids
        answer.text += delta.text
        self._add_logprobs(answer, delta)
        self._add_prompt_logprobs(delta)
        metrics.num_cached_tokens = max(metrics.num_cached_tokens, delta.num_cached_tokens)
        if delta.token_ids and metrics.first_token_time is None:
            metrics.first_token_time = self._clock()
        if delta.finish_reason is not None:
            self._finish(answer, delta)

    def _add_logprobs(self, answer: CompletionOutput, delta: SequenceDelta) -> None:
        if delta.logprobs is None or answer.logprobs is None:
            return
        for token_id, entry in zip(delta.token_ids, delta.logprobs, strict=True):
            answer.logprobs.append(logprobs_by_id(token_id, entry, self._decoded))
            answer.cumulative_logprob = (answer.cumulative_logprob or 0.0) + entry.logprob

    def _add_prompt_logprobs(self, delta: SequenceDelta) -> None:
        if delta.prompt_logprobs is None or self.output.prompt_logprobs is None:
            return
        tokens = self.output.prompt_token_ids[1:]
        self.output.prompt_logprobs += [
            logprobs_by_id(token_id, entry, self._decoded)
            for token_id, entry in zip(tokens, delta.prompt_logprobs, strict=True)
        ]

    def _decoded(self, token_id: int) -> str | None:
        return self._tokenizer.decode([token_id], skip_special_tokens=False) if self._tokenizer else None

    def _finish(self, answer: CompletionOutput, delta: SequenceDelta) -> None:
        assert delta.finish_reason is not None
        answer.finish_reason = delta.finish_reason.value
        answer.stop_reason = delta.stop_reason
        answer.error = delta.error
        if delta.speculation is not None:
            self.output.metrics.speculative_decoding.add(delta.speculation)
        if all(other.finished for other in self.output.outputs):
            self.output.finished = True
            self.output.metrics.finished_time = self._clock()


def _empty(index: int, with_logprobs: bool) -> CompletionOutput:
    return CompletionOutput(index, logprobs=[] if with_logprobs else None)


def logprobs_by_id(token_id: int, entry: TokenLogprobs, decoded: Callable[[int], str | None]) -> dict[int, Logprob]:
    """The likeliest tokens in order, and the emitted one behind them where it is none of them."""
    alternatives = {
        top_id: Logprob(logprob, rank, decoded(top_id))
        for rank, (top_id, logprob) in enumerate(zip(entry.top_ids, entry.top_logprobs, strict=True), 1)
    }
    alternatives.setdefault(token_id, Logprob(entry.logprob, entry.rank, decoded(token_id)))
    return alternatives
