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
    def stalled_seconds(self) -> float | None:
        """Since its last progress, where it lives and has stalled (it is not healthy then); else None."""
        ...

    def generate(self, request: EngineRequest) -> AsyncGenerator[SequenceDelta, None]:
        """Closing the generator early aborts the request.

        Raises InvalidRequestError, EngineDeadError, EngineStalledError.
        """
        ...

    async def stats(self) -> EngineStats: ...
