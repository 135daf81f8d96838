"""What is known of a model by its name alone: whether its heads can be split so, and the positions it was made for.

A repository is not asked: rendering is offline. Names that hold that of a public shape (bench/shapes.py), such as
RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8-dynamic, have its heads; about any other name nothing is said.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from paceline.bench.shapes import locate_model, shape_in
from paceline.deploy.target import Target
from paceline.errors import ConfigurationError
from paceline.models.architecture import Architecture, read_architecture
from paceline.models.sharding import shard_model

_PACELINE_SIZES = (1, 2, 4, 8)  # another is refused by its own arguments


@cache
def architecture_of(shape: str) -> Architecture:
    with tempfile.TemporaryDirectory() as folder:
        return read_architecture(Path(locate_model(shape, Path(folder)).model))


def split_problems(target: Target) -> Iterator[str]:
    """Of the target and of the draft, at the degrees that the values ask for."""
    values = target.values
    size = target.tensor_parallel_size
    models = [("engine.tensor_parallel_size", values.model.source, size)]
    if values.draft is not None:
        config = values.engine.get("speculative_config")
        given = config.get("draft_tensor_parallel_size") if isinstance(config, dict) else None
        draft_size = size if target.runtime == "vllm" else given if isinstance(given, int) else 1
        models.append(("engine.speculative_config.draft_tensor_parallel_size", values.draft.source, draft_size))
    for option, source, degree in models:
        shape = shape_in(source)
        problem = None if shape is None else _split(architecture_of(shape), degree, target.runtime)
        if problem is not None:
            yield f"{option}={degree} is not possible for {source}: {problem}"


def _split(arch: Architecture, size: int, runtime: str) -> str | None:
    if runtime == "vllm":
        heads, kv_heads = arch.num_heads, arch.num_kv_heads
        if size < 1 or not (heads % size or (kv_heads % size and size % kv_heads)):
            return None
        return f"vLLM cannot split {heads} attention heads and {kv_heads} key-value heads over {size} GPUs."
    if size not in _PACELINE_SIZES:
        return None
    try:
        for rank in range(size):
            shard_model(arch, rank, size)
    except ConfigurationError as error:
        return str(error)
    return None


def length_note(target: Target) -> str | None:
    """A note and no problem: a model of this name may have been made for more positions than the public one."""
    wanted, shape = target.values.engine.get("max_model_len"), shape_in(target.values.model.source)
    if shape is None or not isinstance(wanted, int):
        return None
    positions = architecture_of(shape).max_position_embeddings
    if wanted <= positions:
        return None
    return (
        f"engine.max_model_len={wanted} is more than the {positions} positions that {shape} was made for: the server "
        "refuses it, unless the config.json of this model says more."
    )
