"""One run: a batch of prompts through Engine.step, with the clock beside it.

Contract
- All requests are added at once, run to exactly `output_len` tokens, and a request that fails ends the benchmark.
- The run has two phases. Prefill lasts until every sequence has its first token; decode is every step after that, to
  the last token of the last sequence. Decode speed is tokens over seconds of the second phase, so the tail, in which
  some sequences have finished, counts.
- A step is full if all sequences are still running behind it; the time of a step and of its parts is of full steps.
"""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from paceline.engine.engine import Engine
from paceline.engine.statistics import EngineStats
from paceline.errors import PacelineError
from paceline.sampling_params import SamplingParams
from paceline.sequence import EngineRequest, SequenceDelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    batch: int
    input_len: int
    output_len: int
    temperature: float = 0.0
    seed: int = 0

    def prompts(self, vocab_size: int) -> list[list[int]]:
        generator = random.Random(self.seed)
        return [[generator.randrange(vocab_size) for _ in range(self.input_len)] for _ in range(self.batch)]


@dataclass(slots=True, kw_only=True)
class Run:
    """What one run took. Seconds and counts; everything else is derived from them."""

    k: int  # the most drafts of a step
    adaptive: bool = False  # K was chosen for each step
    ttft_seconds: list[float] = field(default_factory=list)
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    decode_tokens: int = 0
    decode_steps: int = 0
    captured_steps: int = 0  # of the decode steps
    full_seconds: float = 0.0
    full_steps: int = 0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    accept_seconds: float = 0.0
    full_draft_seconds: float = 0.0  # of full steps alone, as full_seconds
    full_verify_seconds: float = 0.0
    full_accept_seconds: float = 0.0
    num_passes: int = 0  # of the target, a row each, with drafts or without
    num_drafts: int = 0  # of these, with drafts
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_preemptions: int = 0
    speculation_rested: bool = False  # for a while or throughout: the engine had found the draft useless

    @property
    def decode_tokens_per_second(self) -> float:
        return self.decode_tokens / self.decode_seconds if self.decode_seconds else 0.0

    @property
    def tokens_per_pass(self) -> float:
        """Over every decoding pass of a row: what K=0 gives 1 of."""
        return self.decode_tokens / self.num_passes if self.num_passes else 1.0

    @property
    def tokens_per_drafted_pass(self) -> float:
        """Over the passes that had drafts alone: what the drafts are worth where they are made."""
        return 1.0 + self.num_accepted_tokens / self.num_drafts if self.num_drafts else 1.0

    @property
    def full_step_seconds(self) -> float:
        return self.full_seconds / self.full_steps if self.full_steps else 0.0


def _parts(stats: EngineStats) -> tuple[float, float, float]:
    return stats.draft_seconds, stats.verify_seconds, stats.accept_seconds


class _Clockwork:
    """A run under way."""

    def __init__(self, engine: Engine, workload: Workload, k: int | None, clock: Callable[[], float]) -> None:
        self._engine = engine
        self._clock = clock
        self._unfinished = workload.batch
        self._without_token = {str(index) for index in range(workload.batch)}
        self.run = Run(k=engine.config.num_speculative_tokens if k is None else k, adaptive=k is None)

    def add(self, workload: Workload, vocab_size: int) -> None:
        for index, prompt in enumerate(workload.prompts(vocab_size)):
            params = SamplingParams(
                temperature=workload.temperature,
                max_tokens=workload.output_len,
                ignore_eos=True,
                seed=None if self.run.adaptive else workload.seed + index,  # a seeded request keeps its K
                detokenize=False,
            )
            self._engine.add_request(
                EngineRequest(request_id=str(index), prompt_token_ids=prompt, sampling_params=params)
            )

    def prefill(self) -> None:
        started = self._clock()
        while self._without_token:
            deltas = self._engine.step()
            now = self._clock() - started
            for delta in deltas:
                self._take(delta)
                if delta.token_ids and delta.request_id in self._without_token:
                    self._without_token.discard(delta.request_id)
                    self.run.ttft_seconds.append(now)
        self.run.prefill_seconds = self._clock() - started

    def decode(self) -> None:
        run, everyone = self.run, self._unfinished
        before = copy.deepcopy(self._engine.stats())
        parts = _parts(before)
        while self._unfinished:
            started = self._clock()
            deltas = self._engine.step()
            seconds = self._clock() - started
            run.decode_seconds += seconds
            run.decode_steps += 1
            for delta in deltas:
                run.decode_tokens += len(delta.token_ids)
                self._take(delta)
            earlier, parts = parts, _parts(self._engine.stats())
            if self._unfinished == everyone:
                run.full_seconds += seconds
                run.full_steps += 1
                run.full_draft_seconds += parts[0] - earlier[0]
                run.full_verify_seconds += parts[1] - earlier[1]
                run.full_accept_seconds += parts[2] - earlier[2]
        self._count(before, self._engine.stats())
        while self._engine.has_unfinished():  # a step that was submitted ahead
            self._engine.step()

    def _take(self, delta: SequenceDelta) -> None:
        if delta.error is not None:
            raise PacelineError(f"A sequence failed, so there is nothing to measure: {delta.error}")
        self._unfinished -= delta.finish_reason is not None

    def _count(self, before: EngineStats, after: EngineStats) -> None:
        run = self.run
        run.captured_steps = after.num_captured_steps - before.num_captured_steps
        run.draft_seconds = after.draft_seconds - before.draft_seconds
        run.verify_seconds = after.verify_seconds - before.verify_seconds
        run.accept_seconds = after.accept_seconds - before.accept_seconds
        speculative = self._engine.config.speculative
        if speculative is not None and not speculative.adaptive:  # else a fixed K is kept to, and any other may be 0
            run.speculation_rested = after.speculation_off or before.speculation_off
        run.num_passes = sum(after.passes_by_num_drafts) - sum(before.passes_by_num_drafts)
        run.num_preemptions = after.num_preemptions - before.num_preemptions
        drafted, earlier = after.speculation, before.speculation
        run.num_drafts = drafted.num_drafts - earlier.num_drafts
        run.num_draft_tokens = drafted.num_draft_tokens - earlier.num_draft_tokens
        run.num_accepted_tokens = drafted.num_accepted_tokens - earlier.num_accepted_tokens


def measure(
    engine: Engine, workload: Workload, k: int | None, *, clock: Callable[[], float] = time.perf_counter
) -> Run:
    """Run `workload` with K drafts a step; None: as many as the engine chooses, step by step. The engine must be idle,
    and made for at least that K."""
    engine.set_num_speculative_tokens(k)
    clockwork = _Clockwork(engine, workload, k, clock)
    clockwork.add(workload, engine.config.model.vocab_size)
    clockwork.prefill()
    clockwork.decode()
    return clockwork.run
