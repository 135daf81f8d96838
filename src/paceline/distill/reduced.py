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
from paceline.models import draft_head
from paceline.models.support import REDUCED_HEAD


def frequent_tokens(answer_counts: Tensor, size: int | None, always: Sequence[int]) -> Tensor:
    """Ascending ids [N] of the most frequent tokens, `always` among them; size None: as many as cover 98 % of answers.

    Raises ConfigurationError if `size` is not below the vocabulary's."""
    try:
        return torch.from_numpy(draft_head.frequent_tokens(answer_counts.numpy(), size, always))
    except ValueError as error:
        raise ConfigurationError(f"--draft-vocab {size} {error}.") from None


def coverage(answer_counts: Tensor, tokens: Tensor) -> float:
    """Share of the target's answer tokens that the draft can propose."""
    return float(answer_counts[tokens].sum() / max(int(answer_counts.sum()), 1))


def export_reduced(student: Llama, target_config: dict[str, Any], tokens: Tensor, out: Path) -> None:
    """Write config.json and model.safetensors (BF16) with the head cut to `tokens`, ascending target ids [N]."""
    out.mkdir(parents=True, exist_ok=True)
    config = hugging_face_config(student.shape, target_config) | {
        "architectures": [REDUCED_HEAD],
        "tie_word_embeddings": False,
        "draft_vocab_size": len(tokens),
    }
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    state = {f"model.{k}": v.detach().to("cpu", torch.bfloat16).contiguous() for k, v in student.state_dict().items()}
    state["lm_head.weight"] = state["model.embed_tokens.weight"][tokens].contiguous()
    state["d2t"] = tokens - torch.arange(len(tokens))
    save_file(state, out / "model.safetensors", metadata={"format": "pt"})
