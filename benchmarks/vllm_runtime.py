"""The recorded run of runtime vllm on a real vLLM: the marked tests, and what they saw.

    python benchmarks/vllm_runtime.py --vllm-python /opt/vllm/bin/python

Correctness and counters, no speeds: the tests' names say what is checked.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from common import ROOT, record


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vllm-python", required=True)
    parser.add_argument("--name", default="vllm-runtime")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seen = Path(folder) / "seen.json"
        more = {"PACELINE_VLLM_PYTHON": arguments.vllm_python, "PACELINE_VLLM_RECORD": str(seen)}
        tests = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-m", "vllm", "tests/e2e/test_vllm_real.py", "-rA"]
        run = subprocess.run(tests, cwd=ROOT, env=os.environ | more, capture_output=True, text=True, check=False)
        print(run.stdout[-4000:], file=sys.stderr)
        if run.returncode != 0:
            return run.returncode
        outcome = [line for line in run.stdout.splitlines() if line.startswith(("PASSED", "SKIPPED", "FAILED"))]
        print(record(arguments.name, {"tests": outcome, **json.loads(seen.read_text())}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
