"""How long the collectives of a step take between the ranks of one machine: NCCL in a CUDA graph, or gloo on a CPU.

    python benchmarks/collectives.py --ranks 2 [--hidden 8192] [--vocab 128256] [--out FILE]

A step of L layers makes 2 L all-reduces of [tokens, hidden] and one all-gather of logits; what one of them takes, times
their number, is the share of a step that ranks spend on each other.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from paceline.bench.environment import environment
from paceline.distributed.group import dist
from paceline.distributed.world import MeetingPoint, World
from paceline.engine.core_process import end_with_parent

TOKENS = (1, 6, 16, 64, 128, 384, 768)
IN_A_GRAPH = 50


def seconds_each(call: Callable[[], object], device: torch.device) -> float:
    """Of one call among many in a row."""
    if device.type == "cpu":
        started = time.perf_counter()
        for _ in range(5):
            call()
        return (time.perf_counter() - started) / 5
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(IN_A_GRAPH):
            call()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    graph.replay()
    start.record()
    for _ in range(4):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3 / (4 * IN_A_GRAPH)


class SymmetricMemory:
    """torch's one-shot all-reduce over peer-to-peer memory: what a kernel of our own for small sums could be worth."""

    def __init__(self, port: int, world: World, num_elements: int) -> None:
        from torch._C._distributed_c10d import _SymmetricMemory

        store = dist.PrefixStore(
            "symmetric", dist.TCPStore("127.0.0.1", port, world.size, is_master=False, wait_for_workers=False)
        )
        _SymmetricMemory.set_group_info("symmetric", world.rank, world.size, store)
        self._buffer = _SymmetricMemory.empty_strided_p2p(
            (num_elements,), [1], torch.bfloat16, world.device, "symmetric"
        )
        _SymmetricMemory.rendezvous(self._buffer)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = torch.ops.symm_mem.one_shot_all_reduce_copy(
            self._buffer[: x.numel()], x.view(-1), "sum", "symmetric"
        )
        return total


def measure(world: World, hidden: int, vocab: int) -> list[dict[str, Any]]:
    rows = []
    for tokens in TOKENS:
        x = torch.zeros(tokens, hidden, dtype=torch.bfloat16, device=world.device)
        logits = torch.zeros(tokens, vocab // world.size, dtype=torch.bfloat16, device=world.device)
        row = {
            "tokens": tokens,
            "all_reduce_seconds": seconds_each(lambda x=x: world.target.all_reduce(x), world.device),
            "all_gather_logits_seconds": seconds_each(
                lambda logits=logits: world.target.all_gather(logits), world.device
            ),
        }
        rows.append(row)
        if world.rank == 0:
            print(
                f"{tokens:4} tokens: all-reduce {row['all_reduce_seconds'] * 1e6:8.1f} us, "
                f"all-gather of logits {row['all_gather_logits_seconds'] * 1e6:8.1f} us",
                flush=True,
            )
    return rows


def measure_one_shot(world: World, port: int, hidden: int, rows: list[dict[str, Any]]) -> None:
    """Adds to `rows`. Last, because not every machine lets devices into each other's memory."""
    one_shot = SymmetricMemory(port, world, max(TOKENS) * hidden)
    for row in rows:
        x = torch.ones(row["tokens"], hidden, dtype=torch.bfloat16, device=world.device)
        assert bool((one_shot.all_reduce(x) == world.size).all())
        row["one_shot_seconds"] = seconds_each(lambda x=x: one_shot.all_reduce(x), world.device)
        if world.rank == 0:
            print(f"{row['tokens']:4} tokens: one-shot all-reduce {row['one_shot_seconds'] * 1e6:8.1f} us", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=8192)
    parser.add_argument("--vocab", type=int, default=128256)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rank", type=int, default=0, help="set by the script itself")
    parser.add_argument("--port", type=int, default=0, help="set by the script itself")
    options = parser.parse_args()
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    meeting = MeetingPoint(options.ranks) if options.rank == 0 else None
    port = meeting.port if meeting else options.port
    others = [
        subprocess.Popen(
            [sys.executable, __file__, *sys.argv[1:], "--rank", str(rank), "--port", str(port)], stdin=subprocess.PIPE
        )
        for rank in range(1, options.ranks if meeting else 0)
    ]
    if meeting is None:
        end_with_parent(sys.stdin.fileno())
    device = torch.device(kind, options.rank) if kind == "cuda" else torch.device("cpu")
    world = World.connect(port, options.rank, options.ranks, 1, device)
    rows = measure(world, options.hidden, options.vocab)

    def keep() -> None:
        if meeting is not None and options.out is not None:
            command = shlex.join(["python", "benchmarks/collectives.py", *sys.argv[1:]])
            content = {
                **environment(kind),
                "command": command,
                "ranks": options.ranks,
                "hidden": options.hidden,
                "rows": rows,
            }
            options.out.write_text(json.dumps(content, indent=1) + "\n")

    keep()
    if kind == "cuda":
        measure_one_shot(world, port, options.hidden, rows)
        keep()
    world.target.minimum(0)
    for other in others:
        other.wait()


if __name__ == "__main__":
    main()
