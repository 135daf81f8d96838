"""/metrics: the engine's counters as Prometheus text, under `paceline:` with vLLM's suffixes.

Rendered from one EngineStats at the moment of the scrape; nothing is counted twice.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from paceline.engine.statistics import EngineStats

_GAUGES = {
    "num_requests_running": ("num_running", "Sequences in the running batch."),
    "num_requests_waiting": ("num_waiting", "Sequences waiting for room."),
    "spec_decode_off": ("speculation_off", "1: the draft was of no use and rests; the log says more."),
    "kv_cache_usage_perc": ("kv_cache_usage", "Share of the KV blocks in use; 1 means all."),
}
_SYNTHETIC = "1: drafts are kept at given rates; the text is NOT the target's, and speed is all that is measured."

_COUNTERS = {
    "prompt_tokens": ("prompt_tokens", "Prompt tokens of admitted requests."),
    "generation_tokens": ("generation_tokens", "Tokens generated."),
    "prefix_cache_queries": ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache."),
    "prefix_cache_hits": ("prefix_cache_hits", "Prompt tokens found in the prefix cache."),
    "num_preemptions": ("num_preemptions", "Sequences put back for lack of KV blocks."),
    "engine_steps": ("num_steps", "Steps of the engine."),
    "spec_decode_switch_offs": (
        "num_speculation_switch_offs",
        "Times that speculation was switched off because no drafts were taken.",
    ),
    "draft_failures": ("draft_failures", "Sequences whose draft failed and which went on without."),
    "draft_seconds": ("draft_seconds", "Seconds spent proposing."),
    "verify_seconds": ("verify_seconds", "Seconds spent in the target's passes."),
    "accept_seconds": ("accept_seconds", "Seconds spent accepting."),
    "schedule_seconds": ("schedule_seconds", "Seconds spent scheduling and committing."),
    "step_seconds": ("step_seconds", "Seconds spent in steps, all parts together."),
}
_SPECULATION = {
    "spec_decode_num_drafts": ("num_drafts", "Target passes with at least one draft token."),
    "spec_decode_num_draft_tokens": ("num_draft_tokens", "Draft tokens proposed."),
    "spec_decode_num_accepted_tokens": ("num_accepted_tokens", "Draft tokens accepted."),
}
_REASONS = ("stop", "length", "abort", "error")


class _Snapshot(Collector):
    def __init__(self, stats: EngineStats, model: str) -> None:
        self._stats = stats
        self._model = model

    def collect(self) -> Iterable[Metric]:
        for name, (attribute, help_text) in _GAUGES.items():
            gauge = GaugeMetricFamily(f"paceline:{name}", help_text, labels=("model_name",))
            gauge.add_metric((self._model,), getattr(self._stats, attribute))
            yield gauge
        yield self._synthetic()
        for table, source in ((_COUNTERS, self._stats), (_SPECULATION, self._stats.speculation)):
            for name, (attribute, help_text) in table.items():
                counter = self._counter(name, help_text)
                counter.add_metric((self._model,), getattr(source, attribute))
                yield counter
        yield self._accepted_per_position()
        yield self._finished()

    def _synthetic(self) -> Metric:
        gauge = GaugeMetricFamily("paceline:spec_decode_synthetic_acceptance", _SYNTHETIC, labels=("model_name",))
        gauge.add_metric((self._model,), float(self._stats.speculation.synthetic))
        return gauge

    def _counter(self, name: str, help_text: str, *labels: str) -> CounterMetricFamily:
        return CounterMetricFamily(f"paceline:{name}", help_text, labels=("model_name", *labels))

    def _accepted_per_position(self) -> Metric:
        name = "spec_decode_num_accepted_tokens_per_pos"
        counter = self._counter(name, "Draft tokens accepted, by their position in the draft.", "position")
        for position, count in enumerate(self._stats.speculation.num_accepted_tokens_per_pos):
            counter.add_metric((self._model, str(position)), count)
        return counter

    def _finished(self) -> Metric:
        counter = self._counter("request_success", "Sequences that ended, by reason.", "finished_reason")
        for reason in _REASONS:
            counter.add_metric((self._model, reason), getattr(self._stats, f"finished_{reason}"))
        return counter


def render_metrics(stats: EngineStats, model: str) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Snapshot(stats, model))
    return generate_latest(registry)
