"""What the engine needs from outside: an executor of plans, and a tokenizer. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from concurrent.futures import Future
from typing import Any, Protocol

from paceline.plan import StepPlan, StepResult, StepShapes
from paceline.structured.constraint import Constraint


class Executor(Protocol):
    """The ranks behind one interface: `submit` a plan, `collect` its result; rows come in the plan's order.

    Both raise EngineDeadError when a rank is gone. A second plan may be submitted before the first is collected only
    while `can_run_ahead` says so, and only one made by Scheduler.plan_ahead; results come in the order of the plans.
    """

    num_blocks: int  # of both pools, the null block included
    block_size: int

    def submit(self, plan: StepPlan) -> None: ...

    def collect(self) -> StepResult: ...

    def can_run_ahead(self) -> bool:
        """The step under way leaves on the device what a next step must know of it."""
        ...

    def describe(self) -> dict[str, str]:
        """The resolved memory plan, dtype and kernels, for the table printed at start."""
        ...

    def shapes(self) -> StepShapes:
        """The steps that are captured, and the hardware."""
        ...

    def check_health(self) -> None: ...

    def shutdown(self) -> None: ...


class TokenDecoder(Protocol):
    """The part of a tokenizer that the engine needs: ids into text, and bad words into ids."""

    def decode(self, token_ids: Seq[int], *, skip_special_tokens: bool = True) -> str: ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...


class GrammarCompiler(Protocol):
    """Compiles constraints away from the step path."""

    def prepare(self, constraint: Constraint) -> Future[Any]:
        """What is to be held while the grammar is in use; the future fails with GrammarError."""
        ...

    def close(self) -> None: ...
