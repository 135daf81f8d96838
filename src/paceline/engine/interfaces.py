"""What the engine needs from outside: an executor of plans, and a tokenizer. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Protocol

from paceline.plan import StepPlan, StepResult


class Executor(Protocol):
    """The ranks behind one interface. `execute` returns rows in the plan's order or raises EngineDeadError."""

    num_blocks: int  # of both pools, the null block included
    block_size: int

    def execute(self, plan: StepPlan) -> StepResult: ...

    def describe(self) -> dict[str, str]:
        """The resolved memory plan, dtype and kernels, for the table printed at start."""
        ...

    def check_health(self) -> None: ...

    def shutdown(self) -> None: ...


class TokenDecoder(Protocol):
    """The part of a tokenizer that turns ids into text."""

    def decode(self, token_ids: Seq[int], *, skip_special_tokens: bool = True) -> str: ...
