"""Several nodes: vLLM on Ray, each stage of the pipeline one node, each node's GPUs one tensor-parallel group.

That split is what vLLM recommends: the layers' sums stay on a node's own links. Ray has to run before vLLM starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.errors import ConfigurationError
from paceline.runtimes.vllm.command import GPU_FACTORS, VllmCommand

RAY_PORT = 6379
MOST_NODES = 1024  # beyond, a mistake: no pipeline has so many stages


def over_nodes(arguments: Mapping[str, Any], nodes: int) -> dict[str, Any]:
    """`arguments` for `nodes` machines, each with tensor_parallel_size GPUs. What the user gave stands."""
    if not 1 <= nodes <= MOST_NODES:
        raise ConfigurationError(f"--nodes must be between 1 and {MOST_NODES}, not {nodes}.")
    if nodes == 1:
        return dict(arguments)
    return {"pipeline_parallel_size": nodes, "distributed_executor_backend": "ray", **arguments}


def check_nodes(command: VllmCommand, nodes: int) -> None:
    """Raises ConfigurationError where `command` is not one that Ray spreads over `nodes` machines alike."""
    backend = command.value("distributed-executor-backend")
    if command.num_nodes > 1 and (nodes > 1 or backend == "ray"):
        raise ConfigurationError(
            f"--nnodes {command.num_nodes} is vLLM's own form of several nodes, without Ray, and --nodes is the one "
            "with Ray: give one of them."
        )
    if nodes == 1:
        return
    if backend != "ray":
        raise ConfigurationError(
            f"--nodes {nodes} needs --distributed-executor-backend ray, not {backend}: the others stay on one machine. "
            "Leave the option out."
        )
    if command.num_gpus % nodes:
        sizes = " x ".join(f"{name} {command.value(name)}" for name in GPU_FACTORS if command.value(name))
        raise ConfigurationError(
            f"{command.num_gpus} GPUs ({sizes}) cannot be the same number on each of --nodes {nodes}: without a "
            "pipeline_parallel_size every node is one stage of it."
        )


def ray_lines(nodes: int, port: int) -> tuple[str, ...]:
    """What to run before vLLM on `port`, as comments of a shell script; none for one node."""
    if nodes == 1:
        return ()
    ray_port = RAY_PORT + (port == RAY_PORT)
    others = "the other node" if nodes == 2 else f"each of the {nodes - 1} other nodes"
    return (
        "# Every node needs the same vLLM with Ray (pip install ray), and the models at the same paths.",
        f"# 1. On this node:        ray start --head --port={ray_port}",
        f"# 2. On {others}:   ray start --address=ADDRESS_OF_THIS_NODE:{ray_port}",
        "# 3. On this node, when `ray status` shows all GPUs:",
    )
