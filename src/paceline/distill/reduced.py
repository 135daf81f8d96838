"""A draft whose head knows only the target's frequent tokens: the head is most of a small draft's cost.

The draft may propose nothing else, so its law is 0 outside; rejection sampling stays exact with such a q. The
embedding keeps every token, because the draft must read all that the target writes. The format is that of EAGLE-3
checkpoints, as vLLM and SGLang read them: `lm_head.weight` [N, hidden], `draft_vocab_size` N in config.json, and
`d2t` [N] int64 with target id = draft id + d2t[draft id]. docs/distill.md is the contract for loaders.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from paceline.distill.model import Llama
from paceline.distill.student import hugging_face_config
from paceline.errors import ConfigurationError

ARCHITECTURE = "LlamaReducedHeadForCausalLM"
_AUTO_COVERAGE = 0.98  # of the target's answers
_AUTO_STEP = 1024  # 'auto' is a multiple of this


def frequent_tokens(answer_counts: Tensor, size: int | None, always: Sequence[int]) -> Tensor:
    """Ascending ids [N] of the most frequent tokens, `always` among them; size None: as many as cover 98 % of answers.

    Raises ConfigurationError if `size` is not below the vocabulary's."""
    vocab = len(answer_counts)
    if size is not None and not len(set(always)) < size < vocab:
        raise ConfigurationError(f"--draft-vocab {size} must be above {len(set(always))} and below {vocab}.")
    order = torch.argsort(answer_counts, descending=True, stable=True)
    if size is None:
        covered = answer_counts[order].cumsum(0) / max(int(answer_counts.sum()), 1)
        needed = int((covered < _AUTO_COVERAGE).sum()) + 1
        size = min(vocab, -(-needed // _AUTO_STEP) * _AUTO_STEP)
    must = torch.tensor(sorted(set(always)), dtype=torch.int64)
    others = order[~torch.isin(order, must)]
    return torch.cat((must, others[: size - len(must)])).sort().values


def coverage(answer_counts: Tensor, tokens: Tensor) -> float:
    """Share of the target's answer tokens that the draft can propose."""
    return float(answer_counts[tokens].sum() / max(int(answer_counts.sum()), 1))


def export_reduced(student: Llama, target_config: dict[str, Any], tokens: Tensor, out: Path) -> None:
    """Write config.json and model.safetensors (BF16) with the head cut to `tokens`, ascending target ids [N]."""
    out.mkdir(parents=True, exist_ok=True)
    config = hugging_face_config(student.shape, target_config) | {
        "architectures": [ARCHITECTURE],
        "tie_word_embeddings": False,
        "draft_vocab_size": len(tokens),
    }
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    state = {f"model.{k}": v.detach().to("cpu", torch.bfloat16).contiguous() for k, v in student.state_dict().items()}
    state["lm_head.weight"] = state["model.embed_tokens.weight"][tokens].contiguous()
    state["d2t"] = tokens - torch.arange(len(tokens))
    save_file(state, out / "model.safetensors", metadata={"format": "pt"})
