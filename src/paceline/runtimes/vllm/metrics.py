"""vLLM's metrics under Paceline's names beside its own: `vllm:x` is also `paceline:x`.

The two agree in what a suffix means (num_requests_running, spec_decode_num_accepted_tokens_total, ...), so a copy
of the text is enough; nothing is counted here.
"""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from paceline.engine.statistics import EngineStats
from paceline.sequence import SpeculationCounts

_OWN, _THEIRS = "paceline:", "vllm:"
_UP = "engine_up"


def with_paceline_names(text: str, *, model: str, healthy: bool) -> str:
    """`text` is Prometheus' text format; `model` labels what is Paceline's own."""
    lines = text.splitlines()
    copied = [renamed for line in lines if (renamed := _renamed(line)) is not None]
    up = [
        f"# HELP {_OWN}{_UP} 1 while vLLM serves and makes progress.",
        f"# TYPE {_OWN}{_UP} gauge",
        f'{_OWN}{_UP}{{model_name="{_escaped(model)}"}} {float(healthy)}',
    ]
    return "\n".join([*lines, *copied, *up, ""])


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _renamed(line: str) -> str | None:
    for start in ("", "# HELP ", "# TYPE "):
        if line.startswith(start + _THEIRS):
            return start + _OWN + line[len(start + _THEIRS) :]
    return None


_NAMES = {
    "num_running": "num_requests_running",
    "num_waiting": "num_requests_waiting",
    "kv_cache_usage": "kv_cache_usage_perc",
    "num_steps": "iteration_tokens_total_count",
    "prompt_tokens": "prompt_tokens_total",
    "generation_tokens": "generation_tokens_total",
    "prefix_cache_queries": "prefix_cache_queries_total",
    "prefix_cache_hits": "prefix_cache_hits_total",
    "num_preemptions": "num_preemptions_total",
    "num_drafts": "spec_decode_num_drafts_total",
    "num_draft_tokens": "spec_decode_num_draft_tokens_total",
    "num_accepted_tokens": "spec_decode_num_accepted_tokens_total",
}
_PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
_SUCCESS = "vllm:request_success_total"


def stats_of(text: str) -> EngineStats:
    """What vLLM's metrics say of Paceline's counters; what it does not count stays 0. Several engines are added."""
    sums: dict[str, float] = {}
    positions: dict[int, int] = {}
    reasons: dict[str, int] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
            if sample.name == _PER_POSITION:
                position = int(sample.labels["position"])
                positions[position] = positions.get(position, 0) + int(sample.value)
            elif sample.name == _SUCCESS:
                reason = sample.labels["finished_reason"]
                reasons[reason] = reasons.get(reason, 0) + int(sample.value)

    def value(field: str) -> float:
        return sums.get(_THEIRS + _NAMES[field], 0.0)

    return EngineStats(
        num_running=int(value("num_running")),
        num_waiting=int(value("num_waiting")),
        kv_cache_usage=value("kv_cache_usage"),
        num_steps=int(value("num_steps")),
        prompt_tokens=int(value("prompt_tokens")),
        generation_tokens=int(value("generation_tokens")),
        prefix_cache_queries=int(value("prefix_cache_queries")),
        prefix_cache_hits=int(value("prefix_cache_hits")),
        num_preemptions=int(value("num_preemptions")),
        finished_stop=reasons.get("stop", 0),
        finished_length=reasons.get("length", 0),
        finished_abort=reasons.get("abort", 0),
        finished_error=reasons.get("error", 0),
        speculation=SpeculationCounts(
            num_drafts=int(value("num_drafts")),
            num_draft_tokens=int(value("num_draft_tokens")),
            num_accepted_tokens=int(value("num_accepted_tokens")),
            num_accepted_tokens_per_pos=[positions[position] for position in sorted(positions)],
        ),
    )
