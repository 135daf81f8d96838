"""Answers that grammars hold to, of a tiny pair with the byte tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from model.tiny import make_tiny
from structured.byte_tokens import eos_id, save

from paceline import LLM, SamplingParams, StructuredOutputsParams


def write(folder: Path) -> None:
    for name, seed in (("target", 0), ("draft", 1)):
        make_tiny("llama", folder / name, seed=seed, vocab_size=288, eos_token_id=eos_id())
        save(folder / name)


def make(folder: str, **arguments: Any) -> LLM:
    speculative = {"model": f"{folder}/draft", "num_speculative_tokens": 3, "adaptive": False}
    return LLM(
        f"{folder}/target", dtype="float32", block_size=4, max_num_seqs=8, speculative_config=speculative, **arguments
    )


def answers(llm: LLM) -> list[str]:
    """Of rows with grammars beside one without."""
    params = [
        SamplingParams(temperature=0.9, seed=3, max_tokens=14, structured_outputs=StructuredOutputsParams(**grammar))
        for grammar in ({"regex": "[a-f]{4}-[0-9]{2}"}, {"choice": ["river", "mountain"]})
    ]
    params.append(SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True))
    outputs = llm.generate(["one", "two", "three"], params, use_tqdm=False)
    return [output.outputs[0].text for output in outputs]
