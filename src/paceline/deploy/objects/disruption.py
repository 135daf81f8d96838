"""PodDisruptionBudget: a drain takes one replica at a time, and never waits for one that is broken anyway."""

from __future__ import annotations

from paceline.deploy.pod import Json
from paceline.deploy.target import Target


def disruption_budget(target: Target) -> Json:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": target.name, "namespace": target.values.namespace, "labels": target.labels()},
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": target.pod_selector()},
        },
    }
