"""`python -m paceline.distill.report DRAFT TRANSCRIPTS`: tokens a target pass by category, for a model card.

A transcript (transcripts.py writes them with the target alone) is a JSON line with `category`, `prompt` and
`output` (token ids; the output ends with the closing token where the target closed). The first output token
comes from the prompt's own pass, without drafts; all others count. See acceptance.py for why one forward
pass over a transcript is enough.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from paceline.distill.acceptance import acceptance_along, expected_passes
from paceline.distill.model import Llama, load_llama


@dataclass(frozen=True, slots=True)
class Transcript:
    category: str
    prompt: tuple[int, ...]
    output: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tally:
    """Sums over transcripts; passes by number of speculative tokens."""

    prompts: int
    tokens: int
    accepted: float  # expected number of tokens that a draft standing there would have hit
    passes: dict[int, float]

    def tokens_per_pass(self, k: int) -> float:
        return self.tokens / self.passes[k]

    def __add__(self, other: Tally) -> Tally:
        passes = {k: self.passes[k] + other.passes[k] for k in self.passes}
        return Tally(self.prompts + other.prompts, self.tokens + other.tokens, self.accepted + other.accepted, passes)


def read_transcripts(path: Path) -> list[Transcript]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [Transcript(line["category"], tuple(line["prompt"]), tuple(line["output"])) for line in lines]


@torch.no_grad()
def _logits(model: Llama, transcript: Transcript) -> Tensor:
    """The laws [len(output) - 1, V] of all output tokens but the first."""
    ids = torch.tensor([[*transcript.prompt, *transcript.output[:-1]]], device=model.table.device)
    hidden: Tensor = model(ids)[0, len(transcript.prompt) :]
    return hidden.float() @ model.table.float().T


def tally(
    transcript: Transcript, draft: Llama, target: Llama | None, ks: Sequence[int], temperature: float, top_p: float
) -> Tally:
    """One transcript. The target is needed only at a temperature."""
    count = len(transcript.output) - 1
    if count < 1:
        return Tally(1, 0, 0.0, dict.fromkeys(ks, 0.0))
    tokens = torch.tensor(transcript.output[1:], device=draft.table.device)
    target_logits = _logits(target, transcript) if target is not None and temperature > 0 else None
    kept = acceptance_along(tokens, _logits(draft, transcript), target_logits, temperature, top_p).tolist()
    return Tally(1, count, sum(kept), {k: expected_passes(kept, k) for k in ks})


def by_category(
    transcripts: Iterable[Transcript],
    draft: Llama,
    target: Llama | None = None,
    *,
    ks: Sequence[int] = (1, 2, 3, 5, 8),
    temperature: float = 0.0,
    top_p: float = 1.0,
) -> dict[str, Tally]:
    """A tally for each category, and `all`."""
    tallies: dict[str, Tally] = {}
    for transcript in transcripts:
        one = tally(transcript, draft, target, ks, temperature, top_p)
        for name in (transcript.category, "all"):
            tallies[name] = tallies[name] + one if name in tallies else one
    return {name: tallies[name] for name in sorted(tallies, key=lambda name: (name == "all", name))}


def markdown(tallies: dict[str, Tally]) -> str:
    """A table: category, prompts, tokens, share of tokens that a draft hits, tokens a pass for each K."""
    ks = list(next(iter(tallies.values())).passes)
    header = ["category", "prompts", "tokens", "hit", *(f"K={k}" for k in ks)]
    lines = ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    for name, t in tallies.items():
        cells = [name, str(t.prompts), str(t.tokens), f"{t.accepted / max(t.tokens, 1):.3f}"]
        cells += [f"{t.tokens_per_pass(k):.2f}" for k in ks]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m paceline.distill.report", description=__doc__)
    options.add_argument("draft", type=Path)
    options.add_argument("transcripts", type=Path)
    options.add_argument("--target", type=Path, help="needed for sampled transcripts")
    options.add_argument("--temperature", type=float, default=0.0)
    options.add_argument("--top-p", type=float, default=1.0)
    chosen = options.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    draft = load_llama(chosen.draft, dtype=torch.float32, device=device)
    target = load_llama(chosen.target, dtype=torch.float32, device=device) if chosen.target else None
    transcripts = read_transcripts(chosen.transcripts)
    print(markdown(by_category(transcripts, draft, target, temperature=chosen.temperature, top_p=chosen.top_p)))


if __name__ == "__main__":
    main()
