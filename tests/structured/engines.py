"""A tiny target with the byte tokenizer, and drafts that seldom agree: most of what they would say is illegal."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from model.tiny import make_tiny
from structured.byte_tokens import byte_tokenizer, eos_id, save

from paceline import LLM, SamplingParams
from paceline.outputs import RequestOutput

PADDED = 288  # more ids than the tokenizer has, as real models have
SPECULATION: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "draft model": {"model": "draft", "num_speculative_tokens": 4, "adaptive": False},
    "either": {"model": "draft", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "adaptive": False},
    "ngram": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "adaptive": False},
}


@lru_cache
def _folder() -> Path:
    folder = Path(mkdtemp(prefix="paceline-test-"))
    for name, seed in (("target", 0), ("draft", 1)):
        make_tiny("llama", folder / name, seed=seed, vocab_size=PADDED, eos_token_id=eos_id())
        save(folder / name)
    return folder


def make_llm(speculation: str, **arguments: Any) -> LLM:
    config = SPECULATION[speculation]
    if config and "model" in config:
        config = {**config, "model": str(_folder() / "draft")}
    arguments = {"block_size": 4, "max_num_seqs": 8, "dtype": "float32", **arguments}
    return LLM(model=str(_folder() / "target"), speculative_config=config, **arguments)


def prompts(count: int) -> list[str]:
    return [f"{place} abc {'ab' * (place % 5)}" for place in range(count)]


def generate(llm: LLM, params: SamplingParams | list[SamplingParams], count: int | None = None) -> list[RequestOutput]:
    count = count if count is not None else len(params) if isinstance(params, list) else 1
    return llm.generate(prompts(count), params, use_tqdm=False)


def ids(outputs: list[RequestOutput]) -> list[list[int]]:
    return [list(answer.token_ids) for output in outputs for answer in output.outputs]


def text(output: RequestOutput) -> str:
    return output.outputs[0].text


__all__ = ["byte_tokenizer", "generate", "ids", "make_llm", "prompts", "text"]
