"""Engines of several ranks on a CPU, whose ranks agree on every step or fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest
from parallel import workers

from paceline import LLM
from paceline.engine.core_process import EngineLike
from paceline.engine.engine import Engine
from paceline.sequence import SequenceDelta
from paceline.worker.parallel_executor import ParallelExecutor

NUM_BLOCKS = 41  # too few for eight rows at once: some are preempted
TESTS = Path(__file__).resolve().parent.parent


class CheckedEngine(Engine):
    def step(self) -> list[SequenceDelta]:
        deltas = super().step()
        self.check_integrity()
        return deltas


class World(LLM):
    """An LLM whose workers are of a class of workers.py."""

    def __init__(self, workers_class: str, model: str, **arguments: Any) -> None:
        self._workers_class = workers_class
        super().__init__(
            model, device="cpu", dtype="float32", block_size=4, max_num_seqs=8, max_model_len=80,
            num_gpu_blocks_override=NUM_BLOCKS, skip_tokenizer_init=True, **arguments,
        )  # fmt: skip

    def _make_engine(self) -> EngineLike:
        self.executor = ParallelExecutor(
            self.config,
            make_worker=getattr(workers, self._workers_class),
            followers=f"parallel.workers:{self._workers_class}",
            check_every=1,
        )
        self.processes = [psutil.Process(pid) for pid in self.executor.pids]
        return CheckedEngine(self.config, self.executor, None)

    def nothing_is_left(self) -> bool:
        """No process of a follower, and nobody listens for one."""
        psutil.wait_procs(self.processes, timeout=10)
        return not any(process.is_running() for process in self.processes)


@pytest.fixture(autouse=True)
def followers_find_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    import paceline

    source = Path(paceline.__file__).parent.parent
    monkeypatch.setenv("PYTHONPATH", f"{source}:{TESTS}")
