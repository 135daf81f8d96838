"""What a decoding step on a GPU is made of: its kernels, how long each runs, and how long the card waits before each.

    python benchmarks/step_trace.py                          # 8 of the 70B's 80 layers, FP8, with the 1B draft
    python benchmarks/step_trace.py --layers 80 --cases 128x0

The real engine decodes with a shape's first layers and random weights; after some steps the profiler watches a few
replays of the captured graph. A case is SEQUENCESxK. For every kernel: how many times a step, its own mean
microseconds, and the mean wait between the latest end of any earlier kernel and its start (below 0: it was let in
while the one before was running, as dependent launch does).
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from common import record

from paceline.bench.acceptance import SyntheticAcceptance
from paceline.bench.measure import Workload, _Clockwork
from paceline.bench.shapes import SHAPES
from paceline.bench.sweep import Models, Sweep, plan_engines
from paceline.build import assemble_engine

_STEPS = 6  # watched
_WARM = 60  # steps before: the sequences are some way into their answers


def kernels_of(engine: Any, steps: int) -> tuple[list[tuple[str, float, float]], float]:
    """(name, start, end) of every kernel of `steps` steps, microseconds; and a step's time without the profiler, ms."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    for _ in range(steps):
        engine.step()
    end.record()
    end.synchronize()
    plain = start.elapsed_time(end) / steps
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(steps):
            engine.step()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    kernels = [
        (event["name"], event["ts"], event["ts"] + event["dur"]) for event in events if event.get("cat") == "kernel"
    ]
    return sorted(kernels, key=lambda kernel: kernel[1]), plain


def summary(kernels: list[tuple[str, float, float]], steps: int) -> list[dict[str, Any]]:
    totals: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0, 0.0])
    latest = None
    for name, start, end in kernels:
        row = totals[name[:90]]
        row[0] += 1
        row[1] += end - start
        if latest is not None and start - latest < 100:  # not the pause between two steps
            row[2] += start - latest
            row[3] += max(0.0, end - max(start, latest))  # what it adds to the step beside waiting
        latest = end if latest is None else max(latest, end)
    return [
        {
            "kernel": name, "per_step": count / steps, "us": us / count, "wait_us": wait / count,
            "added_ms": added / steps / 1e3, "wait_ms": wait / steps / 1e3,
        }
        for name, (count, us, wait, added) in sorted(totals.items(), key=lambda item: -item[1][1])
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-3.1-70b")
    parser.add_argument("--draft", default="llama-3.2-1b")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--cases", default="64x0,128x0,32x3,64x2,128x1")
    parser.add_argument("--kv-cache-dtype", default="auto")
    parser.add_argument("--name", default="step-trace")
    options = parser.parse_args()
    cases = [tuple(int(part) for part in case.split("x")) for case in options.cases.split(",")]
    results = []
    with tempfile.TemporaryDirectory() as folder:
        shape = Path(folder) / "config.json"
        shape.write_text(json.dumps({**SHAPES[options.model], "num_hidden_layers": options.layers}))
        most = max(k for _, k in cases)
        sweep = Sweep(
            batches=tuple(batch for batch, _ in cases), ks=tuple(sorted({k for _, k in cases})), without_draft=False,
            adaptive=False, input_len=128, output_len=256, repeats=1, temperature=0.0, seed=0,
        )  # fmt: skip
        models = Models(
            model=str(shape), draft=options.draft if most else None, load_format="dummy",
            engine={"quantization": "fp8", "kv_cache_dtype": options.kv_cache_dtype},
            speculative={"quantization": "fp8", "quantize_lm_head": True} if most else {},
            acceptance=SyntheticAcceptance(0.78, None) if most else None,
        )  # fmt: skip
        plans, _ = plan_engines(models, sweep, Path(folder) / "shapes")
        engine = assemble_engine(plans[-1].config, None)
        for batch, k in cases:
            engine.set_num_speculative_tokens(k)
            workload = Workload(batch=batch, input_len=128, output_len=256)
            run = _Clockwork(engine, workload, k, lambda: 0.0)
            run.add(workload, plans[-1].config.model.vocab_size)
            run.prefill()
            for _ in range(_WARM // (k + 1)):
                engine.step()
            kernels, plain = kernels_of(engine, _STEPS)
            rows = summary(kernels, _STEPS)
            results.append({"sequences": batch, "k": k, "step_ms": plain, "kernels": rows})
            waits, added = (sum(row[key] for row in rows if row[key] > 0) for key in ("wait_ms", "added_ms"))
            print(f"\n{batch} sequences, K={k}: {plain:.3f} ms a step; kernels {added:.3f}, waits {waits:.3f}")
            for row in rows[:16]:
                print(
                    f"  {row['per_step']:7.1f} x {row['us']:8.2f} us, wait {row['wait_us']:6.2f}, adds"
                    f" {row['added_ms']:7.3f} ms  {row['kernel'][:70]}", flush=True,
                )  # fmt: skip
            for index in range(batch):
                engine.abort(str(index))
            while engine.has_unfinished():
                engine.step()
        engine.shutdown()
    record(options.name, {"model": options.model, "layers": options.layers, "cases": results})


if __name__ == "__main__":
    main()
