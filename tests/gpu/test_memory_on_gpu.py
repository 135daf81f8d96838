"""p35 on a GPU: the printed plan is what is used, and a full cache at 0.95 does not run out of memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from paceline.bench.measure import Workload, measure
from paceline.bench.sweep import Models, Sweep, plan_engines
from paceline.engine.engine import Engine
from paceline.worker.executor import InProcessExecutor
from paceline.worker.profile import largest_steps
from paceline.worker.worker import Worker

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_p35_plan_is_within_2_percent_of_what_is_used(tmp_path: Path) -> None:
    """A 3B with a 1B draft, FP8 where the GPU has it, and a cache that takes all that is left."""
    sweep = Sweep(batches=(256,), ks=(5,), input_len=7936, output_len=256)  # more than any card holds at full length
    models = Models(
        model="llama-3.2-3b",
        draft="llama-3.2-1b",
        engine={"quantization": "fp8", "gpu_memory_utilization": 0.95},
        speculative={"quantization": "fp8"},
    )
    (plan,), _ = plan_engines(models, sweep, tmp_path)
    worker = Worker(plan.config)
    engine = Engine(plan.config, InProcessExecutor(worker, plan.config.cache.block_size), None)
    memory = worker.memory
    assert not memory.is_all
    assert memory.planned_bytes <= memory.limit_bytes

    measure(engine, Workload(batch=256, input_len=512, output_len=32, temperature=0.8), 5)
    measure(engine, Workload(batch=48, input_len=7000, output_len=16, temperature=0.8), 5)
    for step in largest_steps(plan.config):  # eager, as rows with penalties are: what activations are reserved for
        worker.submit(step)
        worker.collect()
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    used = total - free
    print(f"planned {memory.planned_bytes / 2**30:.2f} GiB, used {used / 2**30:.2f} GiB; {memory.describe()}")
    assert used <= memory.limit_bytes
    assert abs(used - memory.planned_bytes) <= 0.02 * used
