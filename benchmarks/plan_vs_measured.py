"""`paceline plan` against recorded runs of `paceline bench offline`: speed before and after calibration, memory.

    python benchmarks/plan_vs_measured.py [RUN.json] [--out results/plan-vs-h200.json]

Runs anywhere in seconds: nothing is measured here, a model of the card is held against what was.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from paceline.bench.environment import environment
from paceline.capacity.calibration import calibrate
from paceline.capacity.document import predictions
from paceline.capacity.hardware import load_gpus
from paceline.capacity.measurement import read_measurement
from paceline.capacity.memory_check import compare_memory

RESULTS = Path(__file__).resolve().parent / "results"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", nargs="?", type=Path, default=RESULTS / "h200-70b-1b-fp8.json")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if not given.run.exists():
        print(f"{given.run} does not exist: record it with benchmarks/one_gpu.sh.", file=sys.stderr)
        return 2
    measured = read_measurement(given.run, load_gpus())
    found = calibrate(measured)
    rows = predictions(found.before, found.after)
    print(f"{found.source}; {measured.command}")
    print("batch  K  measured tok/s  first principles     calibrated   step: first principles, calibrated")
    for row in rows:
        steps = [row["step_error_before"], row["step_error_after"]]
        print(
            f"{row['batch']:5} {row['k']:2} {row['measured_tokens_per_second']:12,.1f} "
            f"{row['predicted_before']:12,.1f} {row['error_before']:+7.1%} {row['predicted_after']:10,.1f} "
            f"{row['error_after']:+6.1%}   " + ", ".join("-" if step is None else f"{step:+.1%}" for step in steps)
        )
    memory = json.loads(given.run.read_text().splitlines()[-1] if given.run.suffix == ".log" else given.run.read_text())
    engines = compare_memory(measured, memory["hardware"]["gpu_memory_bytes"])
    for engine in engines:
        for name, size in engine.recorded.items():
            print(f"memory, K={engine.k}: {name}: {size:,.0f} MiB, planned {engine.planned.get(name, 0):,.0f}")
    content = {
        "benchmark": "plan-vs-measured",
        **{name: value for name, value in environment("cpu").items() if name != "hardware"},
        "measured": {"source": measured.source, "date": measured.date, "command": measured.command,
                     "commit": measured.commit, "gpu": measured.gpu.name},
        "efficiency": found.efficiency.as_dict(),
        "cases": rows,
        "memory_mib": [asdict(engine) for engine in engines],
    }  # fmt: skip
    if given.out is not None:
        given.out.write_text(json.dumps(content, indent=1) + "\n")
    worst = [max(abs(row[name]) for row in rows) for name in ("error_before", "error_after")]
    print(f"largest error: {worst[0]:.1%} from first principles (bar 15 %), {worst[1]:.1%} calibrated (bar 5 %)")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
