"""The recorded run of runtime vllm on a real vLLM: the marked tests, and what they saw.

    PACELINE_VLLM_PYTHON=/opt/vllm/bin/python python benchmarks/vllm_runtime.py

Correctness and counters, no speeds: the tests' names say what is checked. On a small machine each part takes minutes:
`--only draft_model` and so on run one at a time, and add to what the file has from the same commit.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import RESULTS, ROOT, commit, record


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="a part of the tests' names, as pytest's -k")
    parser.add_argument("--name", default="vllm-runtime")
    arguments = parser.parse_args()
    if "PACELINE_VLLM_PYTHON" not in os.environ:
        parser.error("set PACELINE_VLLM_PYTHON to the Python that has vLLM")
    with tempfile.TemporaryDirectory() as folder:
        seen = Path(folder) / "seen.json"
        tests = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-m", "vllm", "tests/e2e/test_vllm_real.py", "-rA"]
        tests += ["-k", arguments.only] if arguments.only else []
        environment = os.environ | {"PACELINE_VLLM_RECORD": str(seen)}
        run = subprocess.run(tests, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        print(run.stdout[-4000:], file=sys.stderr)
        if run.returncode != 0:
            return run.returncode
        outcome = [line for line in run.stdout.splitlines() if line.startswith(("PASSED", "SKIPPED", "FAILED"))]
        print(
            record(
                arguments.name,
                _with_earlier(arguments.name, outcome, json.loads(seen.read_text()) if seen.exists() else {}),
            )
        )
    return 0


def _with_earlier(name: str, outcome: list[str], seen: dict[str, Any]) -> dict[str, Any]:
    path = RESULTS / f"{name}.json"
    earlier = json.loads(path.read_text()) if path.exists() else {}
    if earlier.get("commit") != commit():
        earlier = {}
    for key in ("benchmark", "command", "commit", "date", "machine"):
        earlier.pop(key, None)
    return earlier | seen | {"tests": sorted({*earlier.get("tests", ()), *outcome})}


if __name__ == "__main__":
    sys.exit(main())
