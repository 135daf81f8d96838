"""The command that serves what was planned: `paceline serve` with the planned limits, one replica of it."""

from __future__ import annotations

import json
import shlex
from typing import Any

from paceline.capacity.planner import Fleet
from paceline.capacity.question import Question


def serve_command(question: Question, fleet: Fleet) -> str:
    limits, target = question.limits, question.target.config
    words = ["paceline", "serve", question.target.name, "--max-model-len", str(limits.max_model_len)]
    words += ["--max-num-seqs", str(fleet.most_sequences)]
    if limits.max_num_batched_tokens != 2048:
        words += ["--max-num-batched-tokens", str(limits.max_num_batched_tokens)]
    if limits.gpu_memory_utilization != 0.9:
        words += ["--gpu-memory-utilization", f"{limits.gpu_memory_utilization:g}"]
    if fleet.tp > 1:
        words += ["--tensor-parallel-size", str(fleet.tp)]
    if target.quantization is not None and question.gpu.has_fp8:
        words += ["--quantization", target.quantization]
        words += ["--quantize-lm-head"] if target.quantize_lm_head else []
    if target.kv_cache_dtype != "auto":
        words += ["--kv-cache-dtype", target.kv_cache_dtype]
    if fleet.k:
        words += ["--speculative-config", json.dumps(_speculative(question, fleet))]
    return shlex.join(words)


def _speculative(question: Question, fleet: Fleet) -> dict[str, Any]:
    found: dict[str, Any] = {"num_speculative_tokens": fleet.k}
    if question.draft is None:
        return {"method": "ngram", **found}
    config = question.draft.config
    found = {"model": question.draft.name, **found}
    if config.quantization is not None and question.gpu.has_fp8:
        found["quantization"] = config.quantization
        found |= {"quantize_lm_head": True} if config.quantize_lm_head else {}
    if fleet.tp > 1:
        found["draft_tensor_parallel_size"] = min(question.draft_tp, fleet.tp)
    return found
