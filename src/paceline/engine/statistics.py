"""EngineStats: the engine's counters and gauges at one moment, the source of /metrics.

Counters only grow; rates and means are for the reader to derive.
"""

from __future__ import annotations

import msgspec

from paceline.sequence import SpeculationCounts


class SpeculationChoices(msgspec.Struct):
    """What the controller of the number of drafts decided, and what came of it. Counters, in decoding steps.

    A reason to rest is "load" (an average request would draft if it had the machine to itself) or "acceptance" (it
    would not even then).
    """

    steps_by_k: list[int] = []  # [k]: steps whose largest draft was k
    expected_tokens: float = 0.0  # of the same steps as the seconds: their ratio is the expected speed
    expected_seconds: float = 0.0
    achieved_tokens: int = 0
    achieved_seconds: float = 0.0  # on the device
    rest_steps: dict[str, int] = msgspec.field(default_factory=lambda: {"load": 0, "acceptance": 0})
    rest_seconds: dict[str, float] = msgspec.field(default_factory=lambda: {"load": 0.0, "acceptance": 0.0})
    num_rests: dict[str, int] = msgspec.field(default_factory=lambda: {"load": 0, "acceptance": 0})
    num_probes: int = 0  # times that a few rows drafted to see whether it would pay


class EngineStats(msgspec.Struct, kw_only=True):
    # gauges
    num_running: int = 0
    num_waiting: int = 0
    kv_cache_usage: float = 0.0  # 0..1, blocks owned by sequences
    num_kv_blocks: int = 0  # that sequences may own: the null block is not counted
    num_speculative_tokens: int = 0  # K in use: drafts a row, the most of any in the last step that emitted
    speculation_off: bool = False  # the drafts are of no use: engine/draft_watch.py, or a rest for "acceptance"

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
    proposer: str = ""  # what drafts where a request does not say: "draft", "ngram", "auto"; "": nothing
    choices: SpeculationChoices | None = None  # None: K is fixed

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
