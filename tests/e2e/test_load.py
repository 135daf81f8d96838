"""The load test in small: benchmarks/load_test.py with a tiny pair (p19, p23, p26, p42, p43, p44)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from e2e.test_server_tiny import write_tokenizer
from model.tiny import make_tiny

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "load_test.py"


def test_abuse_leaves_no_trace(tmp_path: Path) -> None:
    pair = tmp_path / "target", tmp_path / "draft"
    for seed, path in enumerate(pair):
        make_tiny("smollm2", path, seed=seed, vocab_size=write_tokenizer(path) + 7)
    command = [
        *(sys.executable, str(SCRIPT), "--model", str(pair[0]), "--draft", str(pair[1])),
        # So short a run sees mostly what every process takes as it gets going: only a gross leak shows here.
        *("--clients", "12", "--seconds", "4", "--memory-mib", "192"),
        *("--max-model-len", "200", "--kv-cache-memory-bytes", "400000", "--num-speculative-tokens", "3"),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    shown = json.loads(done.stdout)
    assert shown["left"] == {"num_requests_running": 0, "num_requests_waiting": 0, "kv_cache_usage_perc": 0}
    assert shown["counts"]["streams compared"] > 0
    assert shown["engine_killed"]["exit_status"] == 1
