"""A plain Deployment."""

from __future__ import annotations

from paceline.deploy import pod
from paceline.deploy.command import ServerCommand
from paceline.deploy.pod import Json
from paceline.deploy.target import Target


def deployment(target: Target, server: ServerCommand) -> Json:
    values = target.values
    mounts = [*pod.model_mounts(target), *pod.writable_mounts()]
    spec: Json = {} if values.scaling else {"replicas": values.replicas}  # the autoscaler owns the number
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": target.name, "namespace": values.namespace, "labels": target.labels()},
        "spec": {
            **spec,
            "progressDeadlineSeconds": values.rollout.startup_minutes * 60 + 600,
            "revisionHistoryLimit": 5,
            "selector": {"matchLabels": target.labels()},
            # No surge: the new pod would wait for GPUs that the old one holds.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            "template": {
                "metadata": {"labels": target.labels()},
                "spec": {
                    **pod.pod_settings(target),
                    "initContainers": [pod.wait_for_models(target)],
                    "containers": [pod.server_container(target, server, "server", mounts)],
                    "volumes": pod.volumes(target),
                },
            },
        },
    }
