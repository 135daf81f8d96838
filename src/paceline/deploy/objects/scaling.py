"""Scaling by KEDA, on what users feel: requests that wait, and the KV cache, whose end makes them wait.

Never on GPU utilisation: it is 100 % with one request as with a hundred.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.deploy.pod import Json
from paceline.deploy.target import Target


@dataclass(frozen=True, slots=True)
class Signal:
    """A sum over replicas; KEDA divides it by their number and compares with the threshold."""

    name: str
    query: str
    threshold: str


def signals(target: Target) -> list[Signal]:
    scaling = target.values.scaling
    assert scaling is not None
    which = selector(target)
    return [
        Signal(
            "waiting-requests",
            f"sum({target.metric('num_requests_waiting')}{{{which}}})",
            str(scaling.waiting_per_replica),
        ),
        Signal(
            "kv-cache-usage", f"sum({target.metric('kv_cache_usage_perc')}{{{which}}})", f"{scaling.kv_cache_usage:g}"
        ),
    ]


def selector(target: Target) -> str:
    """The labels that Prometheus gives what it scrapes through our Service."""
    return f'namespace="{target.values.namespace}",service="{target.api_name}"'


def triggers(target: Target) -> list[Json]:
    scaling = target.values.scaling
    assert scaling is not None
    return [
        {
            "type": "prometheus",
            "name": signal.name,
            "metricType": "AverageValue",
            "metadata": {
                "serverAddress": scaling.prometheus_url,
                "query": signal.query,
                "threshold": signal.threshold,
            },
        }
        for signal in signals(target)
    ]


def scale_down_behavior(target: Target) -> Json:
    """Up at once, down slowly: a replica takes minutes to load, and one that goes takes its prefix cache along."""
    scaling = target.values.scaling
    assert scaling is not None
    seconds = scaling.scale_down_minutes * 60
    return {
        "scaleDown": {
            "stabilizationWindowSeconds": seconds,
            "policies": [{"type": "Pods", "value": 1, "periodSeconds": min(seconds, 1800)}],
        }
    }


def scaled_object(target: Target) -> Json | None:
    """For a plain Deployment; KServe makes its own from what its resources say."""
    scaling = target.values.scaling
    if scaling is None or target.platform != "kubernetes":
        return None
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": target.name, "namespace": target.values.namespace, "labels": target.labels()},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": target.name},
            "minReplicaCount": scaling.min_replicas,
            "maxReplicaCount": scaling.max_replicas,
            "pollingInterval": 15,
            "fallback": {"failureThreshold": 4, "replicas": scaling.max_replicas},  # blind: rather too many
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": scale_down_behavior(target)}},
            "triggers": triggers(target),
        },
    }
