"""What a step costs on this machine: Paceline with the draft beside Paceline without, one sequence at a time.

The two take turns prompt by prompt, because a machine drifts; a ratio is taken within a turn. K is measured at a few
values and interpolated between them. Raw seconds are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.sampling_params import SamplingParams

if TYPE_CHECKING:
    from paceline.llm import LLM

MEASURED_KS = (1, 4, 8)
_TOKENS = 32  # of each answer
_ROOM = 64  # tokens that an answer could still have


@dataclass(frozen=True, slots=True)
class Turn:
    """Milliseconds a step in one turn, the plain engine's beside those of the engine with a draft."""

    plain: float
    step: float
    draft: float
    verify: float


@dataclass(frozen=True, slots=True)
class Costs:
    turns: dict[int, list[Turn]]  # by K
    drafted: dict[int, float]  # tokens really drafted a step: an engine may decide for fewer than K

    def relative_step(self, k: int) -> tuple[float, float, float]:
        """A step with K drafts over a plain step: median, lowest and highest turn; interpolated where not measured."""
        ratios = {n: [turn.step / turn.plain for turn in turns] for n, turns in self.turns.items()}
        known = sorted(ratios)
        middle, low, high = (
            float(np.interp(k, known, [pick(ratios[n]) for n in known])) for pick in (median, min, max)
        )
        return middle, low, high

    def medians(self, k: int) -> Turn:
        turns = self.turns[k]
        fields = [[getattr(turn, name) for turn in turns] for name in Turn.__slots__]
        return Turn(*(median(values) for values in fields))

    def as_json(self) -> dict[str, Any]:
        return {
            str(k): {
                "drafted_per_step": round(self.drafted[k], 3),
                "turns_ms": [
                    {name: round(getattr(turn, name), 4) for name in Turn.__slots__} for turn in self.turns[k]
                ],
            }
            for k in sorted(self.turns)
        }


@dataclass(frozen=True, slots=True)
class SpeedUp:
    """Expected speed with K drafts over plain decoding, one sequence; low and high from the noise of the costs."""

    k: int
    expected: float
    low: float
    high: float


def speed_ups(tokens_per_pass: dict[int, float], costs: Costs) -> list[SpeedUp]:
    """Tokens a pass over the relative cost of a step (Leviathan et al., arXiv 2211.17192, theorem 3.8, measured)."""
    found = []
    for k, tokens in tokens_per_pass.items():
        middle, low, high = costs.relative_step(k)
        found.append(SpeedUp(k, tokens / middle, tokens / high, tokens / low))
    return found


def best_k(found: Sequence[SpeedUp]) -> int:
    """The fastest K; 0 if plain decoding is faster than all of them."""
    best = max(found, key=lambda speed_up: speed_up.expected)
    return best.k if best.expected > 1.0 else 0


def measure_costs(
    plain: LLM, with_draft: Callable[[int], LLM], prompts: Sequence[Sequence[int]], *, turns: int = 3
) -> Costs:
    """`with_draft(K)` makes an engine with K drafts; it is closed afterwards. One uncounted turn fills the caches."""
    measured: dict[int, list[Turn]] = {}
    drafted: dict[int, float] = {}
    for k in MEASURED_KS:
        with with_draft(k) as drafting:
            measured[k] = []
            for number in range(-1, turns):
                prompt = prompts[number % len(prompts)]
                for llm in (plain, drafting):
                    _ask(llm, prompt, 1)  # the prompt is in the prefix cache from here on
                counts = [_ask(plain, prompt, _TOKENS), _ask(drafting, prompt, _TOKENS)]
                if number >= 0:
                    measured[k].append(Turn(counts[0][0], counts[1][0], counts[1][1], counts[1][2]))
            speculation = drafting.stats().speculation
            drafted[k] = speculation.num_draft_tokens / max(speculation.num_drafts, 1)
    return Costs(measured, drafted)


def _ask(llm: LLM, prompt: Sequence[int], num_tokens: int) -> tuple[float, float, float]:
    """Milliseconds a step: whole, drafting, verifying. The answer is left before its end, where K would shrink."""
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens + _ROOM, ignore_eos=True, detokenize=False)
    before = llm.stats()
    fields = ("step_seconds", "draft_seconds", "verify_seconds")
    start, steps = [getattr(before, name) for name in fields], before.num_steps
    with closing(llm.stream({"prompt_token_ids": list(prompt)}, params)) as deltas:  # type: ignore[type-var]
        for delta in deltas:
            num_tokens -= len(delta.token_ids)
            if num_tokens <= 0:
                break
    after = llm.stats()
    count = max(after.num_steps - steps, 1)
    whole, draft, verify = (
        1000 * (getattr(after, name) - begun) / count for name, begun in zip(fields, start, strict=True)
    )
    return whole, draft, verify
