"""Does the model fit what the command asks for: its heads the parallel sizes, its layers the stages, its length?

vLLM finds out after it has fetched the model. Here it is told as far as the model's config.json is on this machine, or
its name is that of a public shape. `hf_overrides` changes the model: then nothing is told.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeGuard

from paceline.bench.shapes import SHAPES, shape_in
from paceline.errors import ConfigurationError
from paceline.runtimes.vllm.command import VllmCommand

_SAME_IN_VARIANTS = ("num_attention_heads", "num_key_value_heads", "num_hidden_layers")
_MOST_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length")


def check_fit(command: VllmCommand) -> None:
    """Raises ConfigurationError."""
    problems = list(_problems(command))
    if problems:
        raise ConfigurationError(" ".join(problems))


def _config(model: str) -> Mapping[str, Any]:
    """The config.json of a directory that is here, else the heads and layers of the public shape that a name says.

    Not its length: variants are made for more positions under the same name.
    """
    try:
        read = json.loads((Path(model).expanduser() / "config.json").read_text())
    except (OSError, ValueError):
        shape = shape_in(model)
        read = {name: SHAPES[shape][name] for name in _SAME_IN_VARIANTS} if shape else {}
    return _of_text(read) if isinstance(read, dict) else {}


def _problems(command: VllmCommand) -> Iterator[str]:
    if any(name.partition(".")[0] == "hf-overrides" for name, _ in command.options):
        return
    model, draft = command.model, command.draft_model()
    config = _config(model)
    size = int(command.value("tensor-parallel-size") or 1)
    yield from _split(config, model, size)
    yield from _context_ranks(command, size)
    if draft is not None:
        yield from _split(_config(draft), draft, size)
    yield from _stages(config, model, int(command.value("pipeline-parallel-size") or 1))
    yield from _length(config, model, command.value("max-model-len"))


def split_problem(config: Mapping[str, Any], model: str, size: int) -> str | None:
    """A sentence, where vLLM cannot split a model of `config` over `size` GPUs."""
    return next(_split(config, model, size), None)


def _split(config: Mapping[str, Any], model: str, size: int) -> Iterator[str]:
    """The heads of queries are divided; those of keys too, or each is copied to as many GPUs as others."""
    heads = config.get("num_attention_heads")
    kv_heads = None if "kv_lora_rank" in config else config.get("num_key_value_heads", heads)  # latent: not divided
    start = f"tensor_parallel_size={size}: vLLM cannot split the"
    if not _divides(heads, size):
        yield f"{start} {heads} attention heads of '{model}' so. Give {_sizes(heads, kv_heads)}."
    elif not _copies(kv_heads, size):
        yield f"{start} {kv_heads} key-value heads of '{model}' so. Give {_sizes(heads, kv_heads)}."


def _sizes(heads: Any, kv_heads: Any) -> str:
    sizes = range(1, (heads if _is_size(heads) else kv_heads) + 1)
    fitting = [size for size in sizes if _divides(heads, size) and _copies(kv_heads, size)]
    return f"a size that divides them: {', '.join(map(str, fitting))}"


def _divides(heads: Any, size: int) -> bool:
    return not _is_size(heads) or heads % size == 0


def _copies(kv_heads: Any, size: int) -> bool:
    return not _is_size(kv_heads) or max(kv_heads, size) % min(kv_heads, size) == 0


def _context_ranks(command: VllmCommand, size: int) -> Iterator[str]:
    """Decode-context-parallel ranks are tensor-parallel ones, unless there are prefill-context-parallel ones."""
    ranks = int(command.value("decode-context-parallel-size") or 1)
    if size % ranks and int(command.value("prefill-context-parallel-size") or 1) == 1:
        yield (
            f"decode_context_parallel_size={ranks}: it must divide tensor_parallel_size={size}, whose GPUs these ranks "
            "are."
        )


def _stages(config: Mapping[str, Any], model: str, stages: int) -> Iterator[str]:
    layers = config.get("num_hidden_layers")
    if _is_size(layers) and stages > layers:
        yield f"pipeline_parallel_size={stages}: '{model}' has {layers} layers, and every stage needs one at least."


def _length(config: Mapping[str, Any], model: str, asked: str | None) -> Iterator[str]:
    """Scaled positions reach further, by rules of each method: they are vLLM's to judge, but for Llama 3's."""
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default")) if isinstance(scaling, dict) else "other"
    most = [length for name in _MOST_POSITIONS if _is_size(length := config.get(name))]
    allowed = os.environ.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "0").lower() in ("1", "true")
    if asked is None or not most or kind not in ("default", "llama3") or allowed:
        return
    if int(asked) > max(most):
        yield f"max_model_len={asked}: '{model}' has {max(most)} positions; give at most that."


def _of_text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Models of several kinds of input keep the decoder's in `text_config`."""
    inner = config.get("text_config")
    return {**config, **inner} if isinstance(inner, dict) else config


def _is_size(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
