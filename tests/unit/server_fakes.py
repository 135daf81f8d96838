"""Fakes for the tests of the engine process and of the server. No model, no torch.

FakeEngine answers every sequence with the words of its script, two tokens a step: the first one an accepted
draft. Token ids are positions in VOCABULARY; `FakeTokenizer` reads and writes them.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

from paceline.config import EngineConfig, ModelConfig, SpeculativeConfig
from paceline.engine.statistics import EngineStats
from paceline.errors import ConfigurationError, EngineDeadError, InvalidRequestError, UnsupportedModelError
from paceline.plan import TokenLogprobs
from paceline.sequence import EngineRequest, FinishReason, SequenceDelta, SpeculationCounts

VOCABULARY = ["<eos>", "<bos>", *(f" w{i}" for i in range(2, 98)), " é", " end"]
MAX_MODEL_LEN = 64


class FakeTokenizer:
    vocab_size = len(VOCABULARY)
    eos_token_id = 0
    chat_template = ""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        words = text.split()
        return [1] * add_special_tokens + [2 + sum(word.encode()) % 90 for word in words]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return "".join(VOCABULARY[t] for t in token_ids if t > 1 or not skip_special_tokens)

    def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        return [VOCABULARY[t].replace(" ", "Ġ") for t in token_ids]

    def apply_chat_template(
        self, messages: Sequence[dict[str, Any]], *, add_generation_prompt: bool = True, **_: Any
    ) -> list[int]:
        ids = [1]
        for message in messages:
            ids += self.encode(message["content"], add_special_tokens=False)
        return ids + [5] * add_generation_prompt

    def same_tokens(self, other: object) -> bool:
        return isinstance(other, FakeTokenizer)


class FakeEngine:
    """Every sequence says ' w2 w3 w4 …' until max_tokens; the model's name chooses how it misbehaves."""

    def __init__(self, config: EngineConfig, step_seconds: float = 0.0) -> None:
        self.config = config
        self.step_seconds = step_seconds
        self.requests: dict[str, EngineRequest] = {}
        self.emitted: dict[tuple[str, int], int] = {}
        self.counts = EngineStats()

    def add_request(self, request: EngineRequest) -> None:
        if not request.prompt_token_ids:
            raise InvalidRequestError("The prompt is empty.", param="prompt")
        if len(request.prompt_token_ids) >= MAX_MODEL_LEN:
            raise InvalidRequestError("The prompt is too long.", param="prompt", code="context_length_exceeded")
        self.requests[request.request_id] = request
        self.counts.prompt_tokens += len(request.prompt_token_ids)
        for index in range(request.sampling_params.n):
            self.emitted[request.request_id, index] = 0

    def abort(self, request_id: str) -> None:
        if self.requests.pop(request_id, None):
            self.counts.finished_abort += 1
            self.emitted = {key: count for key, count in self.emitted.items() if key[0] != request_id}

    def has_unfinished(self) -> bool:
        return bool(self.emitted)

    def step(self) -> list[SequenceDelta]:
        time.sleep(self.step_seconds)
        deltas = [self._advance(request_id, index) for request_id, index in list(self.emitted)]
        self.requests = {name: r for name, r in self.requests.items() if any(k[0] == name for k in self.emitted)}
        return deltas

    def _advance(self, request_id: str, index: int) -> SequenceDelta:
        request, done = self.requests[request_id], self.emitted[request_id, index]
        params = request.sampling_params
        if 99 in request.prompt_token_ids:
            del self.emitted[request_id, index]
            self.counts.finished_error += 1
            return SequenceDelta(
                request_id=request_id, index=index, finish_reason=FinishReason.ERROR, error="NaN in the logits."
            )
        limit = params.max_tokens or 10
        ids = [2 + (i % 90) for i in range(done, min(done + 2, limit))]
        self.emitted[request_id, index] += len(ids)
        self.counts.generation_tokens += len(ids)
        delta = SequenceDelta(
            request_id=request_id,
            index=index,
            token_ids=ids,
            text="".join(VOCABULARY[i] for i in ids) if params.detokenize else "",
            num_accepted=max(0, len(ids) - 1),
            num_drafted=max(0, len(ids) - 1),
            num_prompt_tokens=len(request.prompt_token_ids),
            num_cached_tokens=1,
            queue_seconds=0.25 if done == 0 else None,
        )
        if ids:
            self.counts.count_pass(len(ids) - 1)
        if params.logprobs is not None:
            delta.logprobs = [
                TokenLogprobs(-0.5, 1, [i, 3][: params.logprobs], [-0.5, -1.5][: params.logprobs]) for i in ids
            ]
        if params.prompt_logprobs is not None and index == 0 and done == 0:
            delta.prompt_logprobs = [
                TokenLogprobs(-0.25, 1, [i][: params.prompt_logprobs], [-0.25][: params.prompt_logprobs])
                for i in request.prompt_token_ids[1:]
            ]
        if done + len(ids) >= limit:
            delta.finish_reason = FinishReason.LENGTH
            delta.speculation = SpeculationCounts(limit // 2, limit // 2, limit // 2, [limit // 2])
            delta.speculation.num_passes = limit - limit // 2
            self.counts.speculation.add(delta.speculation)
            del self.emitted[request_id, index]
        return delta

    def stats(self) -> EngineStats:
        self.counts.num_running = len(self.requests)
        return self.counts

    def describe(self) -> dict[str, str]:
        return {"model": self.config.model.name}

    def shutdown(self) -> None:
        pass


def fake_config(name: str = "fake") -> EngineConfig:
    return EngineConfig(
        model=ModelConfig(path=Path("/nowhere"), name=name, max_model_len=MAX_MODEL_LEN, vocab_size=len(VOCABULARY)),
        speculative=SpeculativeConfig(method="ngram", num_speculative_tokens=1),
    )


def make_fake(config: EngineConfig) -> FakeEngine:
    """A factory for the engine process."""
    match config.model.name:
        case "unsupported":
            raise UnsupportedModelError("Mamba cannot be rolled back.")
        case "wrong":
            raise ConfigurationError("num_blocks is too small.")
        case "crash":
            raise ZeroDivisionError("oops")
        case "loading":
            time.sleep(60)
        case "slow":
            while Path(os.environ["LOADING"]).exists():
                time.sleep(0.05)
        case "stuck":
            return FakeEngine(config, step_seconds=60)
    return FakeEngine(config, step_seconds=0.01)


class FakeClient:
    """An engine client over a FakeEngine in this process: one step whenever somebody waits for a delta."""

    def __init__(self) -> None:
        self.engine = FakeEngine(fake_config())
        self.is_healthy = True
        self.stalled_seconds: float | None = None
        self.dies_after: int | None = None  # steps
        self.inbox: dict[str, list[SequenceDelta]] = {}
        self.wanted_steps: list[bool] = []  # of each request so far

    async def generate(self, request: EngineRequest) -> AsyncGenerator[SequenceDelta, None]:
        self._check_alive()
        self.wanted_steps.append(request.wants_steps)
        self.engine.add_request(request)
        self.inbox[request.request_id] = []
        unfinished = request.sampling_params.n
        try:
            while unfinished:
                await asyncio.sleep(0)
                self._step_if_needed(request.request_id)
                for delta in self.inbox[request.request_id]:
                    unfinished -= delta.finish_reason is not None
                    yield delta
                self.inbox[request.request_id] = []
        finally:
            del self.inbox[request.request_id]
            if unfinished:
                self.engine.abort(request.request_id)

    def _step_if_needed(self, request_id: str) -> None:
        if self.inbox[request_id]:
            return
        self._check_alive()
        for delta in self.engine.step():
            if delta.request_id in self.inbox:
                self.inbox[delta.request_id].append(delta)

    def _check_alive(self) -> None:
        if self.dies_after == 0:
            raise EngineDeadError("killed by the test")
        if self.dies_after is not None:
            self.dies_after -= 1

    async def stats(self) -> EngineStats:
        self._check_alive()
        return self.engine.stats()
