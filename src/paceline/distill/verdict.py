"""What the draft is worth on this machine: tokens a pass by kind of prompt, costs, the K to choose."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from paceline.distill.costs import Costs, SpeedUp, best_k, measure_costs, speed_ups
from paceline.distill.model import Llama
from paceline.distill.report import ALL, KS, Tally, by_category, engine_agreement
from paceline.distill.run import Watcher
from paceline.distill.teacher import Teacher
from paceline.distill.transcripts import ReportPrompt, write_transcripts

if TYPE_CHECKING:
    from paceline.llm import LLM

TEMPERATURE, TOP_P = 0.7, 0.9  # of the sampled transcripts
_EXPECTED_AGREEMENT = 0.9  # of the engine and the teacher, greedy; rounding takes a few hundredths in BF16
_COST_PROMPT_TOKENS = 128  # longer prompts are cut: a step's cost is asked for, not a prompt's


@dataclass(frozen=True, slots=True)
class Verdict:
    greedy: dict[str, Tally]
    sampled: dict[str, Tally]  # at TEMPERATURE, TOP_P
    reduced: dict[str, Tally] | None  # greedy, with the head cut
    draft_vocab: int | None
    costs: Costs
    speed_ups: list[SpeedUp]
    machine: str
    engine_agreement: float

    def as_json(self) -> dict[str, Any]:
        return {
            "tokens_per_pass": {
                "greedy": _tallies(self.greedy),
                "sampled": {"temperature": TEMPERATURE, "top_p": TOP_P, "by_category": _tallies(self.sampled)},
                "reduced_head": self.reduced and {"tokens": self.draft_vocab, "greedy": _tallies(self.reduced)},
            },
            "machine": self.machine,
            "engine_agreement": round(self.engine_agreement, 4),
            "costs": self.costs.as_json(),
            "speed_up": {
                str(s.k): {"expected": round(s.expected, 3), "low": round(s.low, 3), "high": round(s.high, 3)}
                for s in self.speed_ups
            },
            "best_k": best_k(self.speed_ups),
        }


def judge(
    teacher: Teacher,
    student: Llama,
    plain: LLM,
    drafting: Callable[[int], LLM],
    prompts: list[ReportPrompt],
    *,
    answer_room: int,
    seed: int,
    draft_vocab: Tensor | None,
    watcher: Watcher,
) -> Verdict:
    """`plain` is Paceline with the target alone, `drafting(K)` with the exported draft."""
    watcher.advance("reporting", 0, 3)
    student = student.eval().requires_grad_(False)
    greedy = write_transcripts(plain, prompts, max_tokens=answer_room, temperature=0.0, top_p=1.0, seed=seed)
    watcher.advance("reporting", 1, 3)
    sampled = write_transcripts(plain, prompts, max_tokens=answer_room, temperature=TEMPERATURE, top_p=TOP_P, seed=seed)
    by_greed = by_category(greedy, student)
    by_chance = by_category(sampled, student, teacher, temperature=TEMPERATURE, top_p=TOP_P)
    by_cut = by_category(greedy, student, draft_vocab=draft_vocab) if draft_vocab is not None else None
    agreement = engine_agreement(greedy, teacher)
    if agreement < _EXPECTED_AGREEMENT:
        watcher.note("disagreement", agreement=agreement)
    watcher.advance("reporting", 2, 3)
    asked = sorted((p.token_ids for p in prompts), key=len)[:3]
    costs = measure_costs(plain, drafting, [ids[:_COST_PROMPT_TOKENS] for ids in asked])
    tokens_per_pass = {k: by_greed[ALL].tokens_per_pass(k) for k in KS}
    watcher.advance("reporting", 3, 3)
    return Verdict(
        by_greed, by_chance, by_cut, None if draft_vocab is None else len(draft_vocab), costs,
        speed_ups(tokens_per_pass, costs), _machine(teacher.device), agreement,
    )  # fmt: skip


def _tallies(tallies: dict[str, Tally]) -> dict[str, Any]:
    return {
        name: {
            "prompts": t.prompts,
            "tokens": t.tokens,
            "hit": round(t.hit, 4),
            "tokens_per_pass": {str(k): round(t.tokens_per_pass(k), 3) for k in t.passes},
        }
        for name, t in tallies.items()
    }


def _machine(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}"
