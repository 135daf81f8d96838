"""Draws samples from an LLM: many answers of a few tokens, all settings mixed in the same steps."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.errors import PacelineError
from paceline.llm import LLM
from paceline.outputs import RequestOutput
from paceline.sampling_params import SamplingParams
from paceline.sequence import SpeculationCounts

Advance = Callable[[int], None]
_CALLS = 4  # batches in one call of generate: the bar moves, and steps are rarely half empty


@dataclass(frozen=True, slots=True)
class Request:
    prompt: Sequence[int]
    params: Mapping[str, Any]
    seed: int | None
    max_tokens: int

    def sampling_params(self) -> SamplingParams:
        return SamplingParams(**self.params, seed=self.seed, max_tokens=self.max_tokens, detokenize=False)


@dataclass(slots=True)
class Answers:
    token_ids: list[list[int]] = field(default_factory=list)
    counts: SpeculationCounts = field(default_factory=SpeculationCounts)


def answer(llm: LLM, requests: Sequence[Request], advance: Advance = lambda _: None, batch: int = 64) -> Answers:
    """In the order of the requests. Raises PacelineError if the engine fails one of them."""
    answers = Answers()
    size = batch * _CALLS
    for start in range(0, len(requests), size):
        chunk = requests[start : start + size]
        prompts = [{"prompt_token_ids": list(request.prompt)} for request in chunk]
        for output in llm.generate(prompts, [request.sampling_params() for request in chunk], use_tqdm=False):
            answers.token_ids.append(_tokens(output))
            answers.counts.add(output.metrics.speculative_decoding)
        advance(len(chunk))
    return answers


def _tokens(output: RequestOutput) -> list[int]:
    (completion,) = output.outputs
    if completion.finish_reason == "error":
        raise PacelineError(f"The engine failed a request of the verification: {completion.error}")
    return completion.token_ids


def shuffled(requests: Sequence[Request], seed: str) -> tuple[list[Request], list[int]]:
    """The requests in a random order, and where each of the originals is now: neighbours of every kind."""
    order = list(range(len(requests)))
    random.Random(seed).shuffle(order)
    place = [0] * len(order)
    for now, before in enumerate(order):
        place[before] = now
    return [requests[index] for index in order], place


def seeds(count: int, name: str) -> list[int]:
    """64-bit seeds of the runs called `name`."""
    generator = random.Random(name)
    return [generator.getrandbits(63) for _ in range(count)]
