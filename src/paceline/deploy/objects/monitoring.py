"""ServiceMonitor and PrometheusRule, for the Prometheus operator.

The rules ask about this deployment alone. Metric names are vLLM's suffixes under the runtime's prefix; what only
Paceline counts is asked of Paceline only.
"""

from __future__ import annotations

from collections.abc import Iterator

from paceline.deploy.objects.scaling import selector
from paceline.deploy.pod import Json
from paceline.deploy.target import Target


def service_monitor(target: Target) -> Json | None:
    values = target.values
    if not values.monitoring.enabled:
        return None
    endpoint: Json = {
        "port": "http",
        "path": "/metrics",
        "interval": f"{values.monitoring.interval_seconds}s",
        "scrapeTimeout": f"{min(values.monitoring.interval_seconds, 10)}s",
    }
    if target.serves_tls:  # a certificate of KServe's own making
        endpoint |= {"scheme": "https", "tlsConfig": {"insecureSkipVerify": True}}
    key = values.secrets.api_key
    if key is not None and target.runtime == "paceline":  # vLLM asks for the key under /v1 only
        endpoint |= {"authorization": {"credentials": {"name": key.name, "key": key.key}}}
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "ServiceMonitor",
        "metadata": {
            "name": target.name,
            "namespace": values.namespace,
            "labels": {**target.labels(), **values.monitoring.labels},
        },
        "spec": {
            "selector": {"matchLabels": target.labels()},
            "namespaceSelector": {"matchNames": [values.namespace]},
            "endpoints": [endpoint],
        },
    }


def prometheus_rule(target: Target) -> Json | None:
    values = target.values
    if not values.monitoring.enabled:
        return None
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {
            "name": target.name,
            "namespace": values.namespace,
            "labels": {**target.labels(), **values.monitoring.labels},
        },
        "spec": {"groups": [{"name": f"{target.name}.serving", "rules": list(_alerts(target))}]},
    }


def _alerts(target: Target) -> Iterator[Json]:
    which, metric = selector(target), target.metric
    limits = target.values.monitoring
    progress = f"rate({metric('generation_tokens_total')}{{{which}}}[5m]) == 0"
    dead = f"max by (pod) (up{{{which}}}) == 0 or absent(up{{{which}}})"
    if target.runtime == "paceline":
        dead += f" or {metric('engine_up')}{{{which}}} == 0"
    yield _alert(
        target,
        "EngineDead",
        dead,
        "3m",
        "critical",
        "A replica does not answer, or none is there",
        "kubectl describe pod and logs --previous; `paceline deploy doctor` in the pod says what is wrong with it.",
    )
    yield _alert(
        target,
        "EngineStuck",
        f"{metric('num_requests_running')}{{{which}}} > 0 and {progress}",
        "5m",
        "critical",
        "Requests run and no token is made",
        "The liveness probe restarts the pod; keep the log of the engine's process.",
    )
    if target.values.engine.get("speculative_config") or target.values.draft:
        drafted = f"rate({metric('spec_decode_num_draft_tokens_total')}{{{which}}}[15m])"
        accepted = f"rate({metric('spec_decode_num_accepted_tokens_total')}{{{which}}}[15m])"
        yield _alert(
            target,
            "AcceptanceCollapsed",
            f"sum({accepted}) / sum({drafted}) < {limits.min_acceptance_rate:g} and sum({drafted}) > 1",
            "30m",
            "warning",
            "Drafts are rejected: speculation costs more than it gives",
            "Has the target, the draft or the traffic changed? Compare with `paceline bench serve`; retrain the draft "
            "with `paceline distill`, or lower num_speculative_tokens.",
        )
    yield _alert(
        target,
        "QueueGrowing",
        f"sum(avg_over_time({metric('num_requests_waiting')}{{{which}}}[5m])) > {limits.max_waiting}",
        "10m",
        "warning",
        "Requests wait for longer and longer",
        "Raise scaling.max_replicas or max_num_seqs; `paceline plan` says how many replicas the load needs.",
    )
    yield _alert(
        target,
        "KvCacheFull",
        f"max by (pod) (avg_over_time({metric('kv_cache_usage_perc')}{{{which}}}[5m])) > 0.95",
        "10m",
        "warning",
        "The KV cache is full: requests are preempted and computed again",
        "Lower max_model_len or max_num_seqs, use kv_cache_dtype fp8, or add a replica.",
    )
    if target.runtime == "paceline":
        yield _alert(
            target,
            "SpeculationOff",
            f"max by (pod) ({metric('spec_decode_off')}{{{which}}}) == 1",
            "30m",
            "info",
            "A replica has switched speculation off, as its drafts were never taken",
            "The log says why; check that the draft belongs to the target.",
        )


def _alert(target: Target, name: str, expr: str, wait: str, severity: str, summary: str, action: str) -> Json:
    return {
        "alert": f"Paceline{name}",
        "expr": expr,
        "for": wait,
        "labels": {"severity": severity, "deployment": target.name},
        "annotations": {"summary": f"{target.name}: {summary}", "description": action},
    }
