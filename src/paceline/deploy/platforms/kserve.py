"""KServe: a ServingRuntime for the server and an InferenceService for the models, in Standard mode (no Knative).

The container and its volumes are the runtime's; what ServingRuntime has no field for is the predictor's. Both models
come through `storageUris`, read-only from the claim.
"""

from __future__ import annotations

from paceline.deploy import pod
from paceline.deploy.command import ServerCommand
from paceline.deploy.objects.scaling import scale_down_behavior, signals
from paceline.deploy.pod import Json
from paceline.deploy.target import DRAFT_MOUNT, MODEL_MOUNT, Target

FORMAT = "paceline-pair"  # of no other runtime, so that none is chosen in its place


def runtime_name(target: Target) -> str:
    return f"{target.name}-runtime"


def serving_runtime(target: Target, server: ServerCommand) -> Json:
    return {
        "apiVersion": "serving.kserve.io/v1alpha1",
        "kind": "ServingRuntime",
        "metadata": {
            "name": runtime_name(target),
            "namespace": target.values.namespace,
            "labels": target.labels("runtime"),
        },
        "spec": {
            "supportedModelFormats": [{"name": FORMAT, "version": "1", "autoSelect": False}],
            "multiModel": False,
            "containers": [pod.server_container(target, server, "kserve-container", pod.writable_mounts())],
            "volumes": pod.volumes(target),
        },
    }


def inference_service(target: Target) -> Json:
    values = target.values
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {
            "name": target.name,
            "namespace": values.namespace,
            # The route is ours: KServe's own would have its own timeouts, which cut streams.
            "labels": {**target.labels("inference-service"), "networking.kserve.io/visibility": "cluster-local"},
            "annotations": {
                "serving.kserve.io/deploymentMode": "Standard",
                "serving.kserve.io/autoscalerClass": "keda" if values.scaling else "none",
            },
        },
        "spec": {
            "predictor": {
                **_replicas(target),
                "deploymentStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
                "timeout": values.rollout.longest_request_seconds,
                **pod.pod_settings(target),
                "initContainers": [pod.wait_for_models(target)],
                "model": {"modelFormat": {"name": FORMAT, "version": "1"}, "runtime": runtime_name(target)},
                "storageUris": _storage_uris(target),
            }
        },
    }


def _replicas(target: Target) -> Json:
    scaling = target.values.scaling
    if scaling is None:
        return {"minReplicas": target.values.replicas, "maxReplicas": target.values.replicas}
    return {
        "minReplicas": scaling.min_replicas,
        "maxReplicas": scaling.max_replicas,
        "autoScaling": {
            "metrics": [
                {
                    "type": "External",
                    "external": {
                        "metric": {
                            "backend": "prometheus",
                            "serverAddress": scaling.prometheus_url,
                            "query": signal.query,
                        },
                        "target": {"type": "AverageValue", "averageValue": signal.threshold},
                    },
                }
                for signal in signals(target)
            ],
            "behavior": scale_down_behavior(target),
        },
    }


def _storage_uris(target: Target) -> list[Json]:
    uris: list[Json] = [{"uri": f"pvc://{target.models_claim}/{target.model_folder}", "mountPath": MODEL_MOUNT}]
    if target.draft_folder is not None:
        uris.append({"uri": f"pvc://{target.models_claim}/{target.draft_folder}", "mountPath": DRAFT_MOUNT})
    return uris
