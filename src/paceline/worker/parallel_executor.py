"""ParallelExecutor: a worker in this process, the leader, and a follower process for every other rank.

Contract
- One Submit a step goes to every follower, then the leader runs the same plan; Collect likewise. The followers' results
  are dropped: acceptance has been decided on the same numbers everywhere. Every CHECK_EVERY steps digests of them are
  compared, beside the step and not in its way.
- A rank that ends or fails makes `submit` and `collect` raise an EngineDeadError that names it, also while the leader
  waits for the device. Nothing is left behind: the other ranks end at once when one has failed, and else with
  `shutdown`, with this object, or with this process, however that ends.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from paceline.config import EngineConfig
from paceline.distributed import messages
from paceline.distributed.ranks import Ranks
from paceline.distributed.world import MeetingPoint, World
from paceline.engine import wire
from paceline.errors import EngineDeadError
from paceline.plan import StepPlan, StepResult, StepShapes
from paceline.structured.store import GrammarStore
from paceline.worker.draft_cost import DraftCost, draft_cost
from paceline.worker.follower import DEFAULT_FACTORY
from paceline.worker.worker import Worker

CHECK_EVERY = 16  # steps
_CLOSING_SECONDS = 5.0  # that a communicator may take to close; graphs that somebody still holds would keep it for good

logger = logging.getLogger(__name__)


class ParallelExecutor:
    def __init__(
        self,
        config: EngineConfig,
        grammars: GrammarStore | None = None,
        *,
        make_worker: Callable[..., Worker] = Worker,
        followers: str = DEFAULT_FACTORY,
        check_every: int = CHECK_EVERY,
    ) -> None:
        """`make_worker`, and `followers` by name, make the workers; tests put others in their place."""
        self._config = config
        self._check_every = check_every
        self._running = _Running(config, followers, check_every)
        self._close = weakref.finalize(self, self._running.close)
        self._ranks = self._running.ranks
        try:
            world = self._running.connect()
            with self._explained():
                self._worker = make_worker(config, grammars, world, loaded=self._running.wait_until_loaded)
            ready = self._ranks.wait_for(messages.Ready)
        except BaseException:
            self._close()
            raise
        self._memory = [report.memory for report in ready if isinstance(report, messages.Ready)]
        self.num_blocks = self._worker.memory.num_blocks
        self.block_size = config.cache.block_size
        cost = self._draft_cost()
        if cost is not None and cost.advice:
            logger.warning(cost.advice)

    def submit(self, plan: StepPlan) -> None:
        self._ranks.send(messages.Submit(plan))
        with self._explained():
            self._worker.submit(plan)

    def collect(self) -> StepResult:
        self._ranks.send(messages.Collect())
        with self._explained():
            while not self._worker.is_done():  # not waited for: the device may wait for a rank that is gone
                self._ranks.check()
            result = self._worker.collect()
        if result.step_id % self._check_every == 0:
            self._ranks.compare(result.step_id, messages.digest(result))
        return result

    def can_run_ahead(self) -> bool:
        return self._worker.can_run_ahead()

    def describe(self) -> dict[str, str]:
        table = {"ranks": self._ranks_in_words(), **self._worker.describe()}
        cost = self._draft_cost()
        if cost is not None:
            table["memory: a position of KV"] = cost.words
        return table | {f"memory: rank {rank}": words for rank, words in enumerate(self._memory, 1)}

    def shapes(self) -> StepShapes:
        return self._worker.shapes()

    def check_health(self) -> None:
        self._ranks.check()

    def shutdown(self) -> None:
        self._running.stop_ranks()
        self._worker.release()  # before the groups close: NCCL waits for the graphs that hold its communicators
        self._close()

    @property
    def pids(self) -> list[int]:
        """Of the followers, in the order of their ranks."""
        return [follower.process.pid for follower in self._ranks.followers]

    @property
    def num_checks(self) -> int:
        """Steps in which all ranks were found to agree."""
        return self._ranks.num_checks

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """A rank that is gone says more than what the leader stumbled over; and after an error the ranks are no longer
        in step, so that nothing can follow."""
        try:
            yield
        except Exception as error:
            self._ranks.wait_for_failure()
            self._ranks.fail(EngineDeadError(f"Rank 0 failed: {type(error).__name__}: {error}"))
            raise

    def _ranks_in_words(self) -> str:
        size, draft_size = self._config.tensor_parallel_size, self._config.draft_tensor_parallel_size
        how = "NCCL" if self._config.device == "cuda" else "gloo"
        words = f"{size}, joined by {how}; the target is split over all"
        if self._config.draft is None:
            return words
        return words + (", the draft is whole on each" if draft_size == 1 else f", the draft over {draft_size}")

    def _draft_cost(self) -> DraftCost | None:
        worker = self._worker
        if worker.draft is None:
            return None
        return draft_cost(self._config, worker.target.architecture, worker.draft.architecture, worker.memory)


class _Running:
    """What must end: the followers and the groups. Knows no executor, so that it can outlive one."""

    def __init__(self, config: EngineConfig, followers: str, check_every: int) -> None:
        self._size, self._draft_size = config.tensor_parallel_size, config.draft_tensor_parallel_size
        self._device = torch.device(config.device, 0) if config.device == "cuda" else torch.device("cpu")
        self._meeting = MeetingPoint(self._size)
        setups = [
            messages.Setup(
                rank=rank, size=self._size, draft_size=self._draft_size, port=self._meeting.port, reports=-1,
                check_every=check_every, num_threads=torch.get_num_threads(),
                config=wire.encode_config(config).decode(),
            )
            for rank in range(1, self._size)
        ]  # fmt: skip
        self._world: World | None = None
        self.ranks = Ranks(setups, ("paceline.worker.follower", followers))

    def connect(self) -> World:
        self.ranks.wait_for(messages.Up)
        world = World.connect(self._meeting.port, 0, self._size, self._draft_size, self._device)
        self._world = world
        self.ranks.on_failure = world.abort
        self.ranks.check()
        return world

    def wait_until_loaded(self) -> None:
        self.ranks.wait_for(messages.Loaded)

    def stop_ranks(self) -> None:
        """End the followers, and let go of whatever on the device waits for them."""
        self.ranks.close()
        if self._world is not None:
            self._world.abort()

    def close(self) -> None:
        self.stop_ranks()
        if self._world is not None:
            self._world.wait_until_aborted(_CLOSING_SECONDS)
