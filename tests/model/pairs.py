"""A tiny target and a draft that agrees with it often but not always: the target's own weights, disturbed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from model.tiny import make_tiny
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from paceline import LLM, SamplingParams
from paceline.outputs import RequestOutput


def make_pair(folder: Path, *, noise: float = 0.08) -> tuple[Path, Path]:
    target = make_tiny("llama3", folder / "target", eos_token_id=2)
    draft = make_tiny("llama3", folder / "draft", eos_token_id=2)
    disturb(target, draft, noise)
    return target, draft


def disturb(target: Path, draft: Path, noise: float) -> None:
    """Write the target's weights into the draft's directory, disturbed."""
    weights = load_file(target / "model.safetensors")
    torch.manual_seed(1)
    disturbed = {name: (w + noise * w.std() * torch.randn_like(w)) if w.dim() > 1 else w for name, w in weights.items()}
    save_file(disturbed, draft / "model.safetensors", metadata={"format": "pt"})


def add_tokenizer(path: Path, size: int) -> Path:
    """A tokenizer of `size` words t0, t1, …; t2 ends a text."""
    words = WordLevel({f"t{i}": i for i in range(size)}, unk_token="t0")
    backend = Backend(words)
    backend.pre_tokenizer = WhitespaceSplit()  # type: ignore[assignment]
    PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="t2", unk_token="t0").save_pretrained(path)
    return path


def make_llm(target: Path, speculative: dict[str, Any] | None = None, **arguments: Any) -> LLM:
    return LLM(
        model=str(target),
        **{"dtype": "float32", "skip_tokenizer_init": True, "block_size": 4, "max_num_seqs": 8, **arguments},
        **({"speculative_config": {"adaptive": False, **speculative}} if speculative else {}),
    )


def prompts(count: int, seed: int = 0, low: int = 1, high: int = 40) -> list[list[int]]:
    generator = random.Random(seed)
    return [[generator.randrange(3, 101) for _ in range(generator.randint(low, high))] for _ in range(count)]


def generate(llm: LLM, ids: list[list[int]], params: SamplingParams | list[SamplingParams]) -> list[RequestOutput]:
    return llm.generate([{"prompt_token_ids": p} for p in ids], params, use_tqdm=False)


def texts(llm: LLM, ids: list[list[int]], params: SamplingParams | list[SamplingParams]) -> list[list[int]]:
    return [list(output.outputs[0].token_ids) for output in generate(llm, ids, params)]
