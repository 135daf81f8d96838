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
    num_kv_blocks: int = 0  # that sequences may own: the null block is not counted
    num_speculative_tokens: int = 0  # K in use: drafts a row, the most of any in the last step that emitted
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
    passes_by_num_drafts: list[int] = []  # [k]: target passes of one row that emitted and had k drafts
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
    gap_seconds: float = 0.0  # with work at hand and no model running: the host inside steps and between them

    def count_pass(self, num_drafts: int) -> None:
        """One row's target pass that emitted."""
        missing = num_drafts + 1 - len(self.passes_by_num_drafts)
        self.passes_by_num_drafts.extend([0] * missing)
        self.passes_by_num_drafts[num_drafts] += 1
