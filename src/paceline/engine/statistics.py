"""EngineStats: the engine's counters and gauges at one moment, the source of /metrics.

Counters only grow; rates and means are for the reader to derive.
"""

from __future__ import annotations

import msgspec

from paceline.sequence import SpeculationCounts


class EngineStats(msgspec.Struct, kw_only=True):
    # gauges
    num_running: int = 0
    num_waiting: int = 0
    kv_cache_usage: float = 0.0  # 0..1, blocks owned by sequences

    speculation_off: bool = False  # the drafts were degenerate, see engine/draft_watch.py

    # counters
    num_steps: int = 0
    num_decode_steps: int = 0  # in which every row computed one committed token and emitted
    num_captured_steps: int = 0  # of these: as one captured graph
    prompt_tokens: int = 0  # of admitted requests
    generation_tokens: int = 0
    prefix_cache_queries: int = 0  # tokens
    prefix_cache_hits: int = 0  # tokens
    num_preemptions: int = 0
    finished_stop: int = 0
    finished_length: int = 0
    finished_abort: int = 0
    finished_error: int = 0
    draft_failures: int = 0  # sequences whose draft gave NaN and which went on without
    num_speculation_switch_offs: int = 0
    speculation: SpeculationCounts = msgspec.field(default_factory=SpeculationCounts)

    # seconds, summed over steps
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    accept_seconds: float = 0.0
    schedule_seconds: float = 0.0  # scheduling and committing: the host's own work
    step_seconds: float = 0.0
