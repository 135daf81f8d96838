"""Workers for worlds of tests: like the real ones, until a request's seed tells the last rank to go wrong."""

from __future__ import annotations

import threading
from typing import Any

from model.torch_forward import torch_forward
from msgspec import structs

from paceline.errors import UnsupportedModelError
from paceline.plan import StepPlan, StepResult
from paceline.speculative.captured import CapturedDecoder
from paceline.worker.worker import Worker

HANGS, RAISES, COUNTS_WRONG = 0xDEAD, 0xBAD, 0x36  # seeds


class FaultyWorker(Worker):
    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._is_last = self._world.rank == self._world.size - 1
        self._counts_wrong = False

    def submit(self, plan: StepPlan) -> None:
        seeds = {row.sampling.seed for row in plan.rows} if self._is_last else set()
        if HANGS in seeds:
            threading.Event().wait()
        if RAISES in seeds:
            raise MemoryError("planted")
        self._counts_wrong = COUNTS_WRONG in seeds
        super().submit(plan)

    def collect(self) -> StepResult:
        result = super().collect()
        if self._counts_wrong:
            rows = [structs.replace(row, num_accepted=row.num_accepted + 1) for row in result.rows]
            return structs.replace(result, rows=rows)
        return result


class CapturedWorker(FaultyWorker):
    """Runs decode steps as a GPU does: the fused forward and the captured decoder, by their references."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        with torch_forward():
            super().__init__(*arguments, **keywords)
        for runner in filter(None, (self.target, self.draft)):
            runner.use_fused = True
        self.captured = CapturedDecoder(
            self.target, self.draft, block_size=4, vocab_size=101, max_num_seqs=8, max_model_len=256,
            draft_counts=[0, 2, 4],
        )  # fmt: skip
        self.captured.capture()


class UnloadableWorker(Worker):
    def __init__(self, config: Any, grammars: Any, world: Any, **keywords: Any) -> None:
        if world.rank:
            raise UnsupportedModelError("planted: tensor x is missing.")
        super().__init__(config, grammars, world, **keywords)
