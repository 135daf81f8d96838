"""ObservedClient: an engine client that times every token and writes into the current request's record."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from paceline.sequence import EngineRequest, SequenceDelta
from paceline.server.engine_client import EngineClient
from paceline.server.telemetry.record import RequestRecord, current_record
from paceline.server.telemetry.telemetry import Telemetry
from paceline.server.wrapped_client import WrappedClient


class ObservedClient(WrappedClient):
    def __init__(self, inner: EngineClient, telemetry: Telemetry) -> None:
        super().__init__(inner)
        self._telemetry = telemetry

    async def generate(self, request: EngineRequest) -> AsyncGenerator[SequenceDelta, None]:
        record = current_record.get() or _no_record(request.request_id, self._telemetry.clock())
        record.engine_ids.append(request.request_id)
        record.prompt_token_ids.append(request.prompt_token_ids)
        record.num_prompt_tokens += len(request.prompt_token_ids)
        last: dict[int, float] = {}  # by answer: when it last grew
        num_cached = 0
        async with aclosing(self._inner.generate(request)) as deltas:
            async for delta in deltas:
                if delta.token_ids:
                    self._count_tokens(record, delta, last)
                if delta.num_cached_tokens > num_cached:
                    record.num_cached_tokens += delta.num_cached_tokens - num_cached
                    num_cached = delta.num_cached_tokens
                if delta.finish_reason is not None:
                    record.finish_reasons.append(delta.finish_reason.value)
                    if delta.speculation is not None:
                        record.speculation.add(delta.speculation)
                yield delta

    def _count_tokens(self, record: RequestRecord, delta: SequenceDelta, last: dict[int, float]) -> None:
        now, count = self._telemetry.clock(), len(delta.token_ids)
        record.num_completion_tokens += count
        record.last_token = now
        before = last.get(delta.index)
        last[delta.index] = now
        if before is not None:
            self._telemetry.inter_token_latency.add((now - before) / count, count)
            return
        if record.first_token is None:
            record.first_token = now
            self._telemetry.time_to_first_token.add(now - record.started)
        if delta.queue_seconds is not None:
            record.queue_seconds = max(record.queue_seconds or 0.0, delta.queue_seconds)


def _no_record(request_id: str, now: float) -> RequestRecord:
    """Outside of an HTTP request: written into, and thrown away."""
    return RequestRecord(request_id=request_id, method="", path="", started=now)
