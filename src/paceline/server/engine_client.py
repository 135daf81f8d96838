"""What the server needs of an engine; `AsyncEngine` is the real one, tests bring a fake."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from paceline.engine.statistics import EngineStats
from paceline.sequence import EngineRequest, SequenceDelta


class EngineClient(Protocol):
    @property
    def is_healthy(self) -> bool: ...

    @property
    def is_stalled(self) -> bool:
        """It lives, and makes no progress: not healthy."""
        ...

    def generate(self, request: EngineRequest) -> AsyncGenerator[SequenceDelta, None]:
        """Closing the generator early aborts the request.

        Raises InvalidRequestError, EngineDeadError, EngineStalledError.
        """
        ...

    async def stats(self) -> EngineStats: ...
