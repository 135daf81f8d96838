"""Forward passes on a CPU: the one in C++ (weights held in float32, and as it holds them itself) against torch's.

    python benchmarks/cpu_forward.py [--rows 1,2,6,8,16,24,48,256] [--context 256] [--runs 20] [--record]

All forwards take turns in one process, the machine otherwise idle. A row is one token of a sequence of its own behind
`--context` others, as in decoding; from 64 rows on they are one prompt's chunk. Times, medians in milliseconds, are of
a pass with the logits of every row (of a chunk: of the last), and of five draft passes with the argmax between them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from statistics import median
from unittest import mock

import torch
from common import record

from paceline.arguments import resolve_arguments
from paceline.config import EngineConfig, ModelConfig
from paceline.kernels import cpu_decoder
from paceline.runner.batch_inputs import Span, build
from paceline.runner.model_runner import ModelRunner

BLOCK_SIZE = 16
DRAFTS = 5
LOOP_ROWS = (1, 8)
CHUNK = 64  # rows from which on they are one prompt's

Runners = dict[str, ModelRunner]
Table = dict[str, dict[str, float]]  # by rows, then by forward: milliseconds


def main() -> None:
    arguments = parse()
    config = resolve(arguments.target, arguments.draft)
    rows = [int(count) for count in arguments.rows.split(",")]
    found: dict[str, Table] = {}
    for name, model in (("target", config.model), ("draft", config.draft)):
        assert model is not None
        most = max(*LOOP_ROWS, *(row for row in rows if row < CHUNK))
        runners = load(model, most, arguments.context + max(DRAFTS, *rows))
        found[name] = {
            str(count): take_turns(passes(runners, count, arguments.context), arguments.runs) for count in rows
        }
        if name == "draft":
            found[f"{DRAFTS} draft passes"] = {
                str(count): take_turns(loops(runners, count, arguments.context), arguments.runs) for count in LOOP_ROWS
            }
    for name, table in found.items():
        show(name, table)
    if arguments.record:
        print(record("cpu-forward", {"milliseconds": found, "context": arguments.context}))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="smollm2-135m-instruct")
    parser.add_argument("--draft", default="smollm2-135m-instruct-draft")
    parser.add_argument("--rows", default="1,2,6,8,16,24,48,256")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--record", action="store_true")
    return parser.parse_args()


def resolve(target: str, draft: str) -> EngineConfig:
    speculative = {"model": draft, "num_speculative_tokens": DRAFTS}
    return resolve_arguments({"model": target, "speculative_config": speculative}).config


def load(model: ModelConfig, num_rows: int, length: int) -> Runners:
    runners = {"torch": ModelRunner.load(model, use_native=False)}
    with mock.patch.object(cpu_decoder, "_smallest", lambda weight: weight.float()):
        runners["C++, float32"] = ModelRunner.load(model)
    runners["C++, as held"] = ModelRunner.load(model)
    for runner in runners.values():
        runner.allocate_kv(1 + num_rows * -(-length // BLOCK_SIZE), BLOCK_SIZE)
    return runners


def passes(runners: Runners, rows: int, context: int) -> dict[str, Callable[[], object]]:
    if rows < CHUNK:
        spans = [Span(table(row, context + 1), context, [7 + row], num_logits=1) for row in range(rows)]
    else:
        spans = [Span(table(0, context + rows), context, list(range(7, 7 + rows)), num_logits=1)]
    batch = build(spans, BLOCK_SIZE).to(torch.device("cpu"))
    return {name: (lambda runner=runner: runner.forward(batch)) for name, runner in runners.items()}


def loops(runners: Runners, rows: int, context: int) -> dict[str, Callable[[], object]]:
    return {name: (lambda runner=runner: draft(runner, rows, context)) for name, runner in runners.items()}


def draft(runner: ModelRunner, rows: int, context: int) -> None:
    """In one call, as the proposer does it where it can."""
    if runner.drafts_in_one_call:
        spans = [Span(table(row, context + DRAFTS), context, [7 + row], num_logits=1) for row in range(rows)]
        batch = build(spans, BLOCK_SIZE).to(torch.device("cpu"))
        runner.draft_greedily(batch, list(range(rows)), [DRAFTS] * rows, [context + 1] * rows)
        return
    tokens = torch.arange(7, 7 + rows)
    for step in range(DRAFTS):
        spans = [
            Span(table(row, context + DRAFTS), context + step, (), num_device_tokens=1, num_logits=1)
            for row in range(rows)
        ]
        batch = build(spans, BLOCK_SIZE).to(torch.device("cpu"), tokens)
        output = runner.forward(batch)
        tokens = output.logits.argmax(-1) if output.peaks is None else output.peaks.token_ids


def table(row: int, length: int) -> list[int]:
    width = -(-length // BLOCK_SIZE)
    return list(range(1 + row * width, 1 + (row + 1) * width))


def take_turns(calls: dict[str, Callable[[], object]], runs: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(runs + 2):
        for name, call in calls.items():
            started = time.perf_counter()
            call()
            if turn >= 2:
                times[name].append(1e3 * (time.perf_counter() - started))
    return {name: round(median(values), 3) for name, values in times.items()}


def show(name: str, table: Table) -> None:
    for line in lines(name, table):
        print(line)


def lines(name: str, table: Table) -> Iterator[str]:
    names = list(next(iter(table.values())))
    yield f"| {name}, rows | {' | '.join(names)} |"
    yield "|---" * (len(names) + 1) + "|"
    for rows, times in table.items():
        yield f"| {rows} | {' | '.join(f'{times[name]:.2f}' for name in names)} |"
    yield ""


if __name__ == "__main__":
    main()
