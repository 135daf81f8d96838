"""GPUs of a pod: those that the server's own command uses, all of them in one pod."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from paceline.deploy.command import ServerCommand
from paceline.deploy.target import Target
from paceline.deploy.values import MOST_GPUS
from paceline.errors import ConfigurationError

SHORT_OPTIONS = {"-tp": "tensor-parallel-size", "-pp": "pipeline-parallel-size", "-dp": "data-parallel-size"}


def with_gpus(target: Target, server: ServerCommand) -> Target:
    """`target`, asking for what `server` uses. Raises ConfigurationError where one pod cannot hold it."""
    problem = next(_problems(target, server.num_gpus), None)
    if problem is not None:
        raise ConfigurationError(problem)
    return replace(target, gpus_of_command=server.num_gpus)


def gpus_in_words(words: Sequence[str]) -> int | None:
    """What a command of vLLM's or Paceline's in a manifest uses; None where it says none, or is one of several."""
    from paceline.runtimes.vllm import GPU_FACTORS, OF_SEVERAL

    flat = [part.strip("\"'") for word in words for part in word.replace("=", " ").split()]
    names = [SHORT_OPTIONS.get(word, word.removeprefix("--").replace("_", "-")) for word in flat]
    if "serve" not in flat and not any("vllm" in word for word in flat):
        return None
    if "ray" in flat or any(name in (*OF_SEVERAL, "nnodes", "nodes") for name in names):
        return None
    sizes = dict(zip(names, flat[1:], strict=False))
    given = [sizes[name] for name in GPU_FACTORS if name in sizes]
    return prod(map(int, given)) if given and all(size.isdecimal() for size in given) else None


def _problems(target: Target, used: int) -> Iterator[str]:
    size, wanted = target.tensor_parallel_size, target.values.resources.gpus
    sizes = "the product of its parallel sizes" if used != size else "its tensor-parallel size"
    if target.on_cpu:
        if used > 1:
            yield f"The server would use {used} GPUs, {sizes}, and these values ask for none (device cpu or gpus 0)."
        return
    if used > MOST_GPUS:
        yield (
            f"The server would use {used} GPUs, {sizes}, and a pod has at most {MOST_GPUS} (resources.gpus): lower "
            "them. Servers over several pods are not rendered."
        )
    if wanted is not None and wanted != used:
        yield (
            f"resources.gpus={wanted} and the engine options disagree: the server uses {used} GPUs, {sizes}. Leave "
            "resources.gpus out."
        )
    if target.serves_tls and used != size:
        yield (
            f"platform kserve-llm renders tensor parallelism alone, and the server would use {used} GPUs at "
            f"engine.tensor_parallel_size={size}: leave the other parallel sizes out, or use platform kserve or "
            "kubernetes."
        )
