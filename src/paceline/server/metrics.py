"""/metrics: the engine's counters and the API's latencies as Prometheus text, under `paceline:` with vLLM's suffixes.

Rendered at the moment of the scrape from one EngineStats and the Telemetry; nothing is counted twice. It is answered
when the engine is dead as well, with its last counters and `engine_up` 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from paceline.config import EngineConfig
from paceline.engine.statistics import EngineStats
from paceline.server.telemetry.telemetry import Telemetry

_GAUGES = {
    "num_requests_running": ("num_running", "Sequences in the running batch."),
    "num_requests_waiting": ("num_waiting", "Sequences waiting for room."),
    "kv_cache_usage_perc": ("kv_cache_usage", "Share of the KV blocks in use; 1 means all."),
    "spec_decode_off": ("speculation_off", "1: the draft was of no use and rests; the log says more."),
    "spec_decode_k": ("num_speculative_tokens", "K in use: drafts a sequence in the last step, the most of any."),
}
_SYNTHETIC = "1: drafts are kept at given rates; the text is NOT the target's, and speed is all that is measured."

_COUNTERS = {
    "prompt_tokens": ("prompt_tokens", "Prompt tokens of admitted requests."),
    "generation_tokens": ("generation_tokens", "Tokens generated."),
    "prefix_cache_queries": ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache."),
    "prefix_cache_hits": ("prefix_cache_hits", "Prompt tokens found in the prefix cache."),
    "num_preemptions": ("num_preemptions", "Sequences put back for lack of KV blocks."),
    "engine_steps": ("num_steps", "Steps of the engine."),
    "engine_decode_steps": ("num_decode_steps", "Steps in which every row decoded: those that a graph can replay."),
    "engine_graph_hits": ("num_captured_steps", "Decode steps that ran as one captured graph; always 0 on a CPU."),
    "spec_decode_switch_offs": (
        "num_speculation_switch_offs",
        "Times that speculation was switched off because no drafts were taken.",
    ),
    "draft_failures": ("draft_failures", "Sequences whose draft failed and which went on without."),
    "draft_seconds": ("draft_seconds", "Seconds spent proposing."),
    "verify_seconds": ("verify_seconds", "Seconds spent in the target's passes."),
    "accept_seconds": ("accept_seconds", "Seconds spent accepting."),
    "gap_seconds": ("gap_seconds", "Seconds with work at hand in which no model ran: the host, in steps and between."),
    "schedule_seconds": ("schedule_seconds", "Seconds spent scheduling and committing."),
    "step_seconds": ("step_seconds", "Seconds spent in steps, all parts together."),
}
_SPECULATION = {
    "spec_decode_num_drafts": ("num_drafts", "Target passes with at least one draft token."),
    "spec_decode_num_draft_tokens": ("num_draft_tokens", "Draft tokens proposed."),
    "spec_decode_num_accepted_tokens": ("num_accepted_tokens", "Draft tokens accepted."),
}
_BY_PROPOSER = {
    "drafts": ("num_drafts", "Target passes with drafts, by what drafted: the draft model, or a lookup in the text."),
    "draft_tokens": ("num_draft_tokens", "Draft tokens proposed, by what drafted."),
    "accepted_tokens": ("num_accepted_tokens", "Draft tokens accepted, by what drafted."),
}
_CHOICES = {
    "expected_tokens": "Tokens that the controller of K expected of its decode steps.",
    "expected_seconds": "Seconds that it expected of them: the ratio is the speed expected.",
    "achieved_tokens": "Tokens that these steps brought.",
    "achieved_seconds": "Seconds that they took on the device.",
}
_PROBES = "Times that a few rows drafted during a rest, to see whether drafting would pay."
_RESTS = {
    "rests": "Times that drafting was stopped: 'load', or 'acceptance' if drafts would not pay at any load.",
    "rest_steps": "Decode steps in which drafting rested, by reason.",
    "rest_seconds": "Seconds in which drafting rested, by reason.",
}
_HISTOGRAMS = {
    "time_to_first_token_seconds": ("time_to_first_token", "From the request's arrival to its first token."),
    "inter_token_latency_seconds": ("inter_token_latency", "Between two tokens; a pass's tokens share its time."),
    "request_time_per_output_token_seconds": ("time_per_output_token", "A whole answer's mean time between tokens."),
    "e2e_request_latency_seconds": ("e2e_latency", "Whole requests, from arrival to the last byte."),
    "request_queue_time_seconds": ("queue_time", "From a request's arrival in the engine to its first step."),
    "request_prompt_tokens": ("prompt_tokens", "Prompt tokens of a request."),
    "request_generation_tokens": ("generation_tokens", "Tokens generated for a request, all answers together."),
}
_REASONS = ("stop", "length", "abort", "error")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is rendered."""

    stats: EngineStats
    telemetry: Telemetry
    config: EngineConfig
    model: str
    engine_up: bool
    log_lines_dropped: int = 0


class _Families(Collector):
    def __init__(self, snapshot: Snapshot) -> None:
        self._of = snapshot

    def collect(self) -> Iterable[Metric]:
        yield from self._engine_gauges()
        yield from self._engine_counters()
        yield from self._choices()
        yield from self._api_counters()
        yield from self._histograms()

    def _engine_gauges(self) -> Iterator[Metric]:
        stats, config = self._of.stats, self._of.config
        for name, (attribute, help_text) in _GAUGES.items():
            yield self._gauge(name, help_text, getattr(stats, attribute))
        yield self._gauge("spec_decode_synthetic_acceptance", _SYNTHETIC, stats.speculation.synthetic)
        yield self._gauge("engine_up", "1: the engine lives and makes progress.", self._of.engine_up)
        cache = {
            "block_size": str(config.cache.block_size),
            "num_gpu_blocks": str(stats.num_kv_blocks),  # vLLM's name; on a CPU too
            "enable_prefix_caching": str(config.cache.enable_prefix_caching),
            "num_speculative_tokens": str(config.num_speculative_tokens),
        }
        yield self._gauge("cache_config_info", "Always 1; the labels say how the engine is configured.", 1, cache)

    def _engine_counters(self) -> Iterator[Metric]:
        stats = self._of.stats
        for table, source in ((_COUNTERS, stats), (_SPECULATION, stats.speculation)):
            for name, (attribute, help_text) in table.items():
                yield self._counter(name, help_text, {(): getattr(source, attribute)})
        yield self._counter(
            "spec_decode_num_accepted_tokens_per_pos",
            "Draft tokens accepted, by their position in the draft.",
            _by_index(stats.speculation.num_accepted_tokens_per_pos),
            "position",
        )
        by_proposer = stats.speculation.by_proposer
        for name, (attribute, help_text) in _BY_PROPOSER.items():
            values = {(proposer,): getattr(counts, attribute) for proposer, counts in by_proposer.items()}
            yield self._counter(f"spec_decode_proposer_{name}", help_text, values, "proposer")
        yield self._counter(
            "spec_decode_passes",
            "Target passes of one sequence that emitted, by K: the number of drafts they verified.",
            _by_index(stats.passes_by_num_drafts),
            "k",
        )
        yield self._counter(
            "request_success",
            "Sequences that ended, by reason.",
            {(reason,): getattr(stats, f"finished_{reason}") for reason in _REASONS},
            "finished_reason",
        )

    def _choices(self) -> Iterator[Metric]:
        """What the controller of K decided; nothing where K is fixed."""
        choices = self._of.stats.choices
        if choices is None:
            return
        for name, help_text in _CHOICES.items():
            yield self._counter(f"spec_decode_{name}", help_text, {(): getattr(choices, name)})
        yield self._counter("spec_decode_probes", _PROBES, {(): choices.num_probes})
        by_k = _by_index(choices.steps_by_k)
        yield self._counter("spec_decode_steps", "Decode steps by K, the largest number of drafts of a row.", by_k, "k")
        for name, counts in (
            ("rests", choices.num_rests),
            ("rest_steps", choices.rest_steps),
            ("rest_seconds", choices.rest_seconds),
        ):
            by_reason = {(reason,): count for reason, count in counts.items()}
            yield self._counter(f"spec_decode_{name}", _RESTS[name], by_reason, "reason")

    def _api_counters(self) -> Iterator[Metric]:
        telemetry = self._of.telemetry
        yield self._gauge("http_requests_in_progress", "HTTP requests being answered.", telemetry.num_in_progress)
        yield self._counter(
            "http_requests",
            "HTTP requests answered.",
            {(method, route, str(status)): n for (method, route, status), n in telemetry.responses.items()},
            *("method", "handler", "status"),
        )
        errors = {(kind,): count for kind, count in telemetry.errors.items()}
        yield self._counter("request_errors", "Requests that ended with an error, by its code.", errors, "kind")
        yield self._counter("requests_aborted", "Requests whose client left early.", {(): telemetry.num_aborted})
        dropped = {(): self._of.log_lines_dropped}
        yield self._counter("log_lines_dropped", "Log lines that could not be written: a full disk.", dropped)

    def _histograms(self) -> Iterator[Metric]:
        for name, (attribute, help_text) in _HISTOGRAMS.items():
            family = HistogramMetricFamily(f"paceline:{name}", help_text, labels=("model_name",))
            histogram = getattr(self._of.telemetry, attribute)
            family.add_metric((self._of.model,), histogram.cumulative(), histogram.sum)
            yield family

    def _gauge(self, name: str, help_text: str, value: float, labels: Mapping[str, str] | None = None) -> Metric:
        names = ("model_name", *(labels or {}))
        gauge = GaugeMetricFamily(f"paceline:{name}", help_text, labels=names)
        gauge.add_metric((self._of.model, *(labels or {}).values()), float(value))
        return gauge

    def _counter(self, name: str, help_text: str, values: Mapping[Any, float], *labels: str) -> CounterMetricFamily:
        """`values` by the tuple of their labels' values."""
        counter = CounterMetricFamily(f"paceline:{name}", help_text, labels=("model_name", *labels))
        for label_values, value in values.items():
            counter.add_metric((self._of.model, *label_values), value)
        return counter


def _by_index(counts: list[int]) -> dict[tuple[str, ...], float]:
    return {(str(index),): count for index, count in enumerate(counts)}


def render_metrics(snapshot: Snapshot) -> bytes:
    """Prometheus' text format; also the API process's own memory, CPU time and open files, as `process_*`."""
    registry = CollectorRegistry()
    registry.register(_Families(snapshot))
    process: Callable[..., object] = ProcessCollector
    process(registry=registry)
    return generate_latest(registry)
