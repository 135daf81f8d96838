"""WrappedClient: what an engine client that stands before another one hands through unchanged."""

from __future__ import annotations

from paceline.engine.statistics import EngineStats
from paceline.server.engine_client import EngineClient


class WrappedClient:
    def __init__(self, inner: EngineClient) -> None:
        self._inner = inner

    @property
    def is_healthy(self) -> bool:
        return self._inner.is_healthy

    @property
    def stalled_seconds(self) -> float | None:
        return self._inner.stalled_seconds

    async def stats(self) -> EngineStats:
        return await self._inner.stats()
