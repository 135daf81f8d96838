"""Tokens a target pass by kind of prompt, from transcripts: what the target alone wrote.

A transcript's first output token comes from the prompt's own pass, without drafts; all others count. See
acceptance.py for why one forward pass of each model over a transcript is enough, for every K at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.distill.acceptance import acceptance_along, expected_passes
from paceline.distill.model import Llama
from paceline.distill.teacher import Teacher

ALL = "all"
KS = tuple(range(1, 9))


@dataclass(frozen=True, slots=True)
class Transcript:
    category: str
    prompt: tuple[int, ...]
    output: tuple[int, ...]  # ends with the closing token where the target closed


@dataclass(frozen=True, slots=True)
class Tally:
    """Sums over transcripts; passes by number of speculative tokens."""

    prompts: int
    tokens: int
    accepted: float  # expected number of tokens that a draft standing there would have hit
    passes: dict[int, float]

    @property
    def hit(self) -> float:
        """Share of tokens that a draft standing there would have hit."""
        return self.accepted / max(self.tokens, 1)

    def tokens_per_pass(self, k: int) -> float:
        """1.0 where no transcript is longer than its first token."""
        return self.tokens / self.passes[k] if self.tokens else 1.0

    def __add__(self, other: Tally) -> Tally:
        passes = {k: self.passes[k] + other.passes[k] for k in self.passes}
        return Tally(self.prompts + other.prompts, self.tokens + other.tokens, self.accepted + other.accepted, passes)


def _inputs(transcript: Transcript, device: torch.device) -> Tensor:
    return torch.tensor([[*transcript.prompt, *transcript.output[:-1]]], device=device)


def tally(
    transcript: Transcript,
    draft: Llama,
    target: Teacher | None,
    ks: Sequence[int],
    temperature: float,
    top_p: float,
    draft_vocab: Tensor | None = None,
) -> Tally:
    """One transcript. The target is needed only at a temperature; with `draft_vocab`, the draft proposes these only."""
    count = len(transcript.output) - 1
    if count < 1:
        return Tally(1, 0, 0.0, dict.fromkeys(ks, 0.0))
    device, first = draft.table.device, len(transcript.prompt)
    tokens = torch.tensor(transcript.output[1:], device=device)
    draft_logits = draft(_inputs(transcript, device))[0, first:].float() @ draft.table.float().T
    if draft_vocab is not None:
        kept_out = torch.ones(draft_logits.shape[1], dtype=torch.bool, device=device)
        kept_out[draft_vocab.to(device)] = False
        draft_logits = draft_logits.masked_fill(kept_out, float("-inf"))
    target_logits = None
    if target is not None and temperature > 0:
        target_logits = target.read(_inputs(transcript, device))[0, first:].float() @ target.head.float().T
    kept = acceptance_along(tokens, draft_logits, target_logits, temperature, top_p).tolist()
    return Tally(1, count, sum(kept), {k: expected_passes(kept, k) for k in ks})


@torch.no_grad()
def by_category(
    transcripts: Iterable[Transcript],
    draft: Llama,
    target: Teacher | None = None,
    *,
    ks: Sequence[int] = KS,
    temperature: float = 0.0,
    top_p: float = 1.0,
    draft_vocab: Tensor | None = None,
) -> dict[str, Tally]:
    """A tally for each category, and `all`."""
    tallies: dict[str, Tally] = {}
    for transcript in transcripts:
        with torch.compiler.set_stance("force_eager"):  # every length is another: not worth compiling
            one = tally(transcript, draft, target, ks, temperature, top_p, draft_vocab)
        for name in (transcript.category, ALL):
            tallies[name] = tallies[name] + one if name in tallies else one
    return {name: tallies[name] for name in sorted(tallies, key=lambda name: (name == ALL, name))}


@torch.no_grad()
def engine_agreement(greedy: Iterable[Transcript], target: Teacher) -> float:
    """Share of greedily written tokens that the teacher finds likeliest as well: near 1 if the engine that wrote and
    the teacher that judges are the same model; what is missing are near ties that rounding decides."""
    same = count = 0
    for transcript in greedy:
        hidden = target.read(_inputs(transcript, target.device))[0, len(transcript.prompt) - 1 :]
        likeliest = (hidden.float() @ target.head.float().T).argmax(-1)
        same += int((likeliest == torch.tensor(transcript.output, device=target.device)).sum())
        count += len(transcript.output)
    return same / max(count, 1)


def table(tallies: dict[str, Tally]) -> list[list[str]]:
    """Rows of cells, the heading first: category, prompts, tokens, share of tokens that a draft hits, tokens a pass."""
    ks = list(next(iter(tallies.values())).passes)
    rows = [["category", "prompts", "tokens", "hit", *(f"K={k}" for k in ks)]]
    for name, t in tallies.items():
        cells = [name, str(t.prompts), str(t.tokens), f"{t.hit:.3f}"]
        rows.append(cells + [f"{t.tokens_per_pass(k):.2f}" for k in ks])
    return rows


def markdown(rows: list[list[str]]) -> str:
    heading, *body = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([heading, "|---" * len(rows[0]) + "|", *body])
