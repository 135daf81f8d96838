"""Several nodes: vLLM on Ray, each stage of the pipeline one node, each node's GPUs one tensor-parallel group.

That split is what vLLM recommends: the layers' sums stay on a node's own links. Ray has to run before vLLM starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.errors import ConfigurationError

RAY_PORT = 6379


def over_nodes(arguments: Mapping[str, Any], nodes: int) -> dict[str, Any]:
    """`arguments` for `nodes` machines, each with tensor_parallel_size GPUs. What the user gave stands."""
    if nodes < 1:
        raise ConfigurationError(f"--nodes must be at least 1, not {nodes}.")
    if nodes == 1:
        return dict(arguments)
    return {"pipeline_parallel_size": nodes, "distributed_executor_backend": "ray", **arguments}


def ray_lines(nodes: int) -> tuple[str, ...]:
    """What to run before vLLM, as comments of a shell script; none for one node."""
    if nodes == 1:
        return ()
    others = "the other node" if nodes == 2 else f"each of the {nodes - 1} other nodes"
    return (
        "# Every node needs the same vLLM with Ray (pip install ray), and the models at the same paths.",
        f"# 1. On this node:        ray start --head --port={RAY_PORT}",
        f"# 2. On {others}:   ray start --address=ADDRESS_OF_THIS_NODE:{RAY_PORT}",
        "# 3. On this node, when `ray status` shows all GPUs:",
    )
