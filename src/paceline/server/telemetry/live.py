"""LiveStatus: what the server does just now, as one JSON document: GET /v1/paceline/status.

Rates are differences of the engine's counters over the last WINDOW_SECONDS: a background task samples them, and every
look adds a sample. `None` stands where nothing happened in the window, so that a reader shows a gap and not a zero.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec

from paceline import __version__
from paceline.config import EngineConfig
from paceline.engine.statistics import EngineStats
from paceline.errors import EngineDeadError
from paceline.sequence import ProposerCounts
from paceline.server.engine_client import EngineClient
from paceline.server.telemetry.telemetry import Telemetry

WINDOW_SECONDS = 10.0
SAMPLE_SECONDS = 1.0


class LiveStatus:
    def __init__(self, engine: EngineClient, config: EngineConfig, names: Sequence[str], telemetry: Telemetry) -> None:
        self._engine = engine
        self._config = config
        self._names = tuple(names)
        self.telemetry = telemetry
        self._samples: deque[tuple[float, EngineStats]] = deque()
        self.is_stopping = False

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            await self.stats()
            await asyncio.sleep(SAMPLE_SECONDS)

    async def stats(self) -> EngineStats:
        """The engine's counters now; the last that are known if it is dead, when nothing runs or waits any more."""
        try:
            self._add(self.telemetry.clock(), await self._engine.stats())
        except EngineDeadError:
            last = _copy(self._samples[-1][1]) if self._samples else EngineStats()
            last.num_running = last.num_waiting = 0
            last.kv_cache_usage = 0.0
            return last
        return self._samples[-1][1]

    def _add(self, now: float, stats: EngineStats) -> None:
        self._samples.append((now, _copy(stats)))
        while len(self._samples) > 2 and self._samples[0][0] < now - WINDOW_SECONDS:
            self._samples.popleft()

    @property
    def state(self) -> str:
        if not self._engine.is_healthy:
            return "unhealthy"
        return "stopping" if self.is_stopping else "ready"

    @property
    def stalled_seconds(self) -> float | None:
        return self._engine.stalled_seconds

    async def document(self) -> dict[str, Any]:
        now = await self.stats()
        then, seconds = self._window()
        return {
            "object": "paceline.status",
            "version": __version__,
            "state": self.state,
            "uptime_seconds": self.telemetry.clock() - self.telemetry.started,
            "window_seconds": seconds,
            "model": self._names[0],
            "served_model_names": list(self._names),
            "max_model_len": self._config.model.max_model_len,
            "throughput": _throughput(then, now, seconds),
            "requests": {
                "running": now.num_running,
                "waiting": now.num_waiting,
                "max_num_seqs": self._config.scheduler.max_num_seqs,
                "http_in_progress": self.telemetry.num_in_progress,
            },
            "kv_cache": {
                "usage": now.kv_cache_usage,
                "num_blocks": now.num_kv_blocks,
                "block_size": self._config.cache.block_size,
            },
            "prefix_cache": {
                "hit_rate": _ratio(
                    now.prefix_cache_hits - then.prefix_cache_hits, now.prefix_cache_queries - then.prefix_cache_queries
                )
            },
            "speculation": self._speculation(then, now),
            "seconds": {part: getattr(now, part) - getattr(then, part) for part in _PARTS},
            "totals": {name: getattr(now, name) for name in _TOTALS}
            | {"requests_aborted": self.telemetry.num_aborted, "errors": dict(self.telemetry.errors)},
        }

    def _window(self) -> tuple[EngineStats, float]:
        """The oldest sample of the window, and its age against the newest."""
        if not self._samples:
            return EngineStats(), 0.0
        (then, stats), (now, _) = self._samples[0], self._samples[-1]
        return stats, now - then

    def _speculation(self, then: EngineStats, now: EngineStats) -> dict[str, Any] | None:
        configured = self._config.speculative
        if configured is None:
            return None
        old, new = then.speculation, now.speculation
        drafts, drafted = new.num_drafts - old.num_drafts, new.num_draft_tokens - old.num_draft_tokens
        accepted = new.num_accepted_tokens - old.num_accepted_tokens
        passes = _difference(now.passes_by_num_drafts, then.passes_by_num_drafts)
        per_position = _difference(new.num_accepted_tokens_per_pos, old.num_accepted_tokens_per_pos)
        return {
            "method": configured.method,
            "draft": configured.draft.name if configured.draft else None,
            "num_speculative_tokens": configured.num_speculative_tokens,
            "is_off": now.speculation_off,
            "is_synthetic": not configured.is_lossless,
            "proposer": now.proposer or None,
            "by_proposer": {name: _proposed(counts, old.by_proposer[name]) for name, counts in new.by_proposer.items()},
            "is_resting": _is_resting(then, now),
            "k_in_use": now.num_speculative_tokens,
            "mean_k": _ratio(drafted, sum(passes)),
            "passes_by_k": passes,
            "acceptance_rate": _ratio(accepted, drafted),
            "mean_acceptance_length": 1 + accepted / drafts if drafts else None,
            # of the passes that had a draft at a position, how many kept it
            "acceptance_by_position": [
                _ratio(kept, sum(passes[position + 1 :])) for position, kept in enumerate(per_position)
            ],
        }


def _proposed(now: ProposerCounts, then: ProposerCounts) -> dict[str, float | None]:
    """Target passes with its drafts, and the share of these that were accepted."""
    drafted = now.num_draft_tokens - then.num_draft_tokens
    accepted = now.num_accepted_tokens - then.num_accepted_tokens
    return {"passes": now.num_drafts - then.num_drafts, "acceptance_rate": _ratio(accepted, drafted)}


def _is_resting(then: EngineStats, now: EngineStats) -> dict[str, bool] | None:
    """By reason: did drafting rest in the window? None where K is fixed."""
    if now.choices is None:
        return None
    before = then.choices.rest_steps if then.choices else {}
    return {reason: steps > before.get(reason, 0) for reason, steps in now.choices.rest_steps.items()}


_TOTALS = (
    *("prompt_tokens", "generation_tokens", "num_steps", "num_preemptions", "num_decode_steps", "num_captured_steps"),
    *("finished_stop", "finished_length", "finished_abort", "finished_error", "draft_failures"),
)
_PARTS = ("draft_seconds", "verify_seconds", "accept_seconds", "schedule_seconds", "gap_seconds", "step_seconds")


def _throughput(then: EngineStats, now: EngineStats, seconds: float) -> dict[str, float | None]:
    finished = sum(getattr(now, name) - getattr(then, name) for name in ("finished_stop", "finished_length"))
    passes = sum(now.passes_by_num_drafts) - sum(then.passes_by_num_drafts)
    generated = now.generation_tokens - then.generation_tokens
    return {
        "generation_tokens_per_second": _ratio(generated, seconds),
        "prompt_tokens_per_second": _ratio(now.prompt_tokens - then.prompt_tokens, seconds),
        "sequences_finished_per_second": _ratio(finished, seconds),
        "tokens_per_pass": _ratio(generated, passes),
    }


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def _difference(now: Sequence[int], then: Sequence[int]) -> list[int]:
    padded = [*then, *[0] * (len(now) - len(then))]
    return [new - old for new, old in zip(now, padded, strict=True)]


def _copy(stats: EngineStats) -> EngineStats:
    """A fake engine in the same process goes on counting in the object that it gave."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(stats), type=EngineStats)
