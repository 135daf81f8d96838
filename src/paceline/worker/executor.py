"""The executor: the ranks behind one call. One rank runs in this process; more have a leader here (parallel_executor).

`make_executor` is the only way in for the engine's owner; the engine itself knows the protocol alone.
"""

from __future__ import annotations

from paceline.config import EngineConfig
from paceline.engine.interfaces import Executor
from paceline.plan import StepPlan, StepResult, StepShapes
from paceline.structured.store import GrammarStore
from paceline.worker.worker import Worker


class InProcessExecutor:
    """One rank that runs in the caller's thread."""

    def __init__(self, worker: Worker, block_size: int) -> None:
        self._worker = worker
        self.block_size = block_size
        self.num_blocks = worker.memory.num_blocks

    def submit(self, plan: StepPlan) -> None:
        self._worker.submit(plan)

    def collect(self) -> StepResult:
        return self._worker.collect()

    def can_run_ahead(self) -> bool:
        return self._worker.can_run_ahead()

    def describe(self) -> dict[str, str]:
        return self._worker.describe()

    def shapes(self) -> StepShapes:
        return self._worker.shapes()

    def check_health(self) -> None:
        """A worker in this thread is as healthy as its caller."""

    def shutdown(self) -> None:
        """Nothing outlives the object."""


def make_executor(config: EngineConfig, grammars: GrammarStore | None = None, *, compiles: bool = False) -> Executor:
    """Load the models and plan the memory; without `grammars` no request may have one.

    `compiles`: on a CPU, whatever will be compiled is compiled now, and not while a server is at work.

    Raises ConfigurationError for what cannot run here.
    """
    if config.tensor_parallel_size > 1:
        from paceline.worker.parallel_executor import ParallelExecutor

        return ParallelExecutor(config, grammars)
    worker = Worker(config, grammars)
    if compiles:
        worker.compile()
    return InProcessExecutor(worker, config.cache.block_size)
