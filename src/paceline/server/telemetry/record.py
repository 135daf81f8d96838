"""RequestRecord: one HTTP request as it was served. The middleware opens it, whoever learns something writes it in."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field

from paceline.sequence import SpeculationCounts


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """Times are of the telemetry's monotonic clock, in seconds; token counts are sums over all answers."""

    request_id: str
    method: str
    path: str
    started: float
    trace_headers: dict[str, str] = field(default_factory=dict)  # W3C: traceparent, tracestate
    route: str = ""  # the path's template; "" where no endpoint took it
    status: int = 0  # 0: the client was gone before there was one
    error: str | None = None  # the error's code, or its type; of an answer, or of a fault in the middle of a stream
    ended: float = 0.0
    engine_ids: list[str] = field(default_factory=list)  # the engine's names of its prompts
    prompt_token_ids: list[list[int]] = field(default_factory=list)
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_completion_tokens: int = 0
    queue_seconds: float | None = None  # of the prompt that waited longest
    first_token: float | None = None
    last_token: float | None = None
    finish_reasons: list[str] = field(default_factory=list)
    is_aborted: bool = False  # the client left before the end
    speculation: SpeculationCounts = field(default_factory=SpeculationCounts)

    @property
    def seconds(self) -> float:
        return self.ended - self.started

    @property
    def time_to_first_token(self) -> float | None:
        return None if self.first_token is None else self.first_token - self.started

    @property
    def is_generation(self) -> bool:
        """It reached the engine."""
        return bool(self.engine_ids)


current_record: ContextVar[RequestRecord | None] = ContextVar("current_record", default=None)
