"""KServe's LLMInferenceService. It mounts one model; the draft is mounted by us.

With vLLM, KServe's template keeps its command, and our options go through VLLM_ADDITIONAL_ARGS, every word quoted:
the template passes it through a shell's eval. With Paceline the command is replaced, and the route is ours, since
KServe's expects the template's certificate.
"""

from __future__ import annotations

from paceline.deploy import pod
from paceline.deploy.command import ServerCommand
from paceline.deploy.objects.scaling import scale_down_behavior, triggers
from paceline.deploy.pod import Json
from paceline.deploy.target import DRAFT_MOUNT, PORT, Target


def llm_inference_service(target: Target, server: ServerCommand) -> Json:
    values = target.values
    return {
        "apiVersion": "serving.kserve.io/v1alpha2",
        "kind": "LLMInferenceService",
        "metadata": {
            "name": target.name,
            "namespace": values.namespace,
            "labels": {"app.kubernetes.io/instance": target.name, "app.kubernetes.io/managed-by": "paceline"},
        },
        "spec": {
            "model": {"uri": f"pvc://{target.models_claim}/{target.model_folder}", "name": target.served_name},
            **_replicas(target),
            "rolloutStrategy": {"maxSurge": 0, "maxUnavailable": 1},
            **({"parallelism": {"tensor": target.tensor_parallel_size}} if target.runtime == "vllm" else {}),
            **_router(target),
            "template": {
                **pod.pod_settings(target),
                "initContainers": [_wait(target)],
                "containers": [_main(target, server)],
                "volumes": [{**volume, "name": _volume_name(volume["name"])} for volume in pod.volumes(target)],
            },
        },
    }


def _wait(target: Target) -> Json:
    container = pod.wait_for_models(target)
    mounts = [{**mount, "name": _volume_name(mount["name"])} for mount in container["volumeMounts"]]
    return {**container, "volumeMounts": mounts}


def _main(target: Target, server: ServerCommand) -> Json:
    """The container that the template calls 'main'; what stands here wins over the template's."""
    mounts = [{**mount, "name": _volume_name(mount["name"])} for mount in pod.writable_mounts()]
    if target.draft_folder is not None:
        mounts.append({"name": "models", "mountPath": DRAFT_MOUNT, "subPath": target.draft_folder, "readOnly": True})
    container = pod.server_container(target, server, "main", mounts)
    if target.runtime == "vllm":
        del container["command"], container["args"]
        container["ports"] = [{"containerPort": PORT, "protocol": "TCP"}]
        words = pod.literal(_additional_args(server))
        container["env"] = [*container["env"], {"name": "VLLM_ADDITIONAL_ARGS", "value": words}]
    return container


def _additional_args(server: ServerCommand) -> str:
    """The tensor-parallel size is the template's to write, from `parallelism`."""
    words = list(server.arguments)
    if "--tensor-parallel-size" in words:
        at = words.index("--tensor-parallel-size")
        del words[at : at + 2]
    return ServerCommand(tuple(words), {}).as_additional_args()


def _volume_name(name: str) -> str:
    """`dshm` replaces the template's, which is 1 Gi; its `home` is left alone."""
    return {"shm": "dshm", "home": "paceline-home"}.get(name, name)


def _replicas(target: Target) -> Json:
    scaling = target.values.scaling
    if scaling is None:
        return {"replicas": target.values.replicas}
    return {
        "scaling": {
            "minReplicas": scaling.min_replicas,
            "maxReplicas": scaling.max_replicas,
            "keda": {
                "pollingInterval": 15,
                # A rule of the CRD reads `name` wherever the rest is given: it must be there and empty.
                "advanced": {"horizontalPodAutoscalerConfig": {"name": "", "behavior": scale_down_behavior(target)}},
                "triggers": triggers(target),
            },
        }
    }


def _router(target: Target) -> Json:
    """vLLM behind KServe's route and endpoint picker, which reads vLLM's metrics by their names."""
    route = target.values.route
    if target.runtime != "vllm" or route is None:
        return {}
    gateway = {"name": route.gateway.name, "namespace": route.gateway.namespace}
    return {"router": {"gateway": {"refs": [gateway]}, "route": {}, "scheduler": {}}}
