"""The parts of a pod that every platform shares: the server's container, probes, volumes, security, waiting for models.

Why each is there: docs/kubernetes.md, "What every manifest has".
"""

from __future__ import annotations

from typing import Any

from paceline.deploy.command import ServerCommand
from paceline.deploy.target import CACHE_MOUNT, DRAFT_MOUNT, MODEL_MOUNT, PORT, Target

Json = dict[str, Any]

HOME = "/home/paceline"
_PROBE_SECONDS = 10


def command(target: Target) -> list[str]:
    return ["vllm", "serve", MODEL_MOUNT] if target.runtime == "vllm" else ["paceline", "serve", MODEL_MOUNT]


def literal(text: str) -> str:
    """As Kubernetes passes it on unchanged: in commands, arguments and values $(NAME) is a variable, and $$ is $."""
    return text.replace("$", "$$")


def image(target: Target) -> str:
    return target.vllm_image if target.runtime == "vllm" else target.values.image


def environment(target: Target, server: ServerCommand) -> list[Json]:
    """Literal variables first, then those from Secrets; in a stable order."""
    variables = {
        "HOME": HOME,
        "USER": "paceline",  # torch asks for a user's name, and the uid has none in the image of vLLM
        "HF_HUB_OFFLINE": "1",  # weights are plain directories; nothing is fetched while serving
        "XDG_CACHE_HOME": CACHE_MOUNT,
        "TRITON_CACHE_DIR": f"{CACHE_MOUNT}/triton",
        "TORCHINDUCTOR_CACHE_DIR": f"{CACHE_MOUNT}/inductor",
        "CUDA_CACHE_PATH": f"{CACHE_MOUNT}/cuda",
    }
    if target.runtime == "vllm":
        variables |= {"VLLM_CACHE_ROOT": f"{CACHE_MOUNT}/vllm", "VLLM_NO_USAGE_STATS": "1"}
    else:
        variables |= {"PACELINE_HOME": f"{CACHE_MOUNT}/paceline"}
    if target.on_cpu:  # else every core of the node is counted, not the share that the pod may use
        variables |= {"OMP_NUM_THREADS": str(target.values.resources.cpu)}
    variables |= dict(sorted(server.environment.items()))
    env: list[Json] = [{"name": name, "value": literal(value)} for name, value in variables.items()]
    key = target.values.secrets.api_key
    if key is not None:
        name = "VLLM_API_KEY" if target.runtime == "vllm" else "PACELINE_API_KEYS"
        env.append({"name": name, "valueFrom": {"secretKeyRef": {"name": key.name, "key": key.key}}})
    return env


def resources(target: Target) -> Json:
    """GPUs and memory: request = limit. CPU: a request alone, as a limit would throttle the scheduling thread."""
    wanted = target.values.resources
    gpus = {wanted.gpu_resource: str(target.num_gpus)} if target.num_gpus else {}
    return {
        "requests": {"cpu": str(wanted.cpu), "memory": wanted.memory, **gpus},
        "limits": {"memory": wanted.memory, **gpus},
    }


def probes(target: Target) -> Json:
    """All three follow the engine's progress, not the web server's: 503 when it has died or stands still (p42).

    Paceline tells live from ready: while it loads, and while it finishes its last requests, it is live and not ready.
    """
    failures = -(-target.values.rollout.startup_minutes * 60 // _PROBE_SECONDS)
    ready, live = ("/health", "/health") if target.runtime == "vllm" else ("/health/ready", "/health/live")
    startup = {"periodSeconds": _PROBE_SECONDS, "timeoutSeconds": 5, "failureThreshold": failures}
    readiness = {"periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 3}
    liveness = {"periodSeconds": 30, "timeoutSeconds": 10, "failureThreshold": 6}
    return {
        "startupProbe": _probe(target, ready, startup),
        "readinessProbe": _probe(target, ready, readiness),
        "livenessProbe": _probe(target, live, liveness),
    }


def _probe(target: Target, path: str, numbers: Json) -> Json:
    """With KServe's own LLM template only the numbers: path, port and scheme are merged in from there."""
    handler = {} if target.serves_tls else {"httpGet": {"path": path, "port": PORT, "scheme": "HTTP"}}
    return {**handler, **numbers}


def lifecycle(target: Target) -> Json:
    return {"preStop": {"sleep": {"seconds": target.values.rollout.pre_stop_seconds}}}


def container_security(target: Target) -> Json:
    """vLLM's image writes beside its packages when it starts; Paceline's writes to its mounts only."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": target.runtime == "paceline",
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def pod_security(target: Target) -> Json:
    user = target.values.security.user
    return {
        "runAsNonRoot": True,
        "runAsUser": user,
        "runAsGroup": user,
        "fsGroup": user,  # the claims belong to it
        "fsGroupChangePolicy": "OnRootMismatch",  # else 150 GB are walked through at every start
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def writable_mounts() -> list[Json]:
    return [
        {"name": "shm", "mountPath": "/dev/shm"},
        {"name": "compile-cache", "mountPath": CACHE_MOUNT},
        {"name": "home", "mountPath": HOME},
        {"name": "tmp", "mountPath": "/tmp"},
    ]


def model_mounts(target: Target) -> list[Json]:
    """Plain directories, read-only."""
    mounts: list[Json] = [
        {"name": "models", "mountPath": MODEL_MOUNT, "subPath": target.model_folder, "readOnly": True}
    ]
    if target.draft_folder is not None:
        mounts.append({"name": "models", "mountPath": DRAFT_MOUNT, "subPath": target.draft_folder, "readOnly": True})
    return mounts


def volumes(target: Target) -> list[Json]:
    return [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": target.values.resources.shm}},
        {"name": "compile-cache", "persistentVolumeClaim": {"claimName": target.compile_cache_claim}},
        {"name": "home", "emptyDir": {"sizeLimit": "1Gi"}},
        {"name": "tmp", "emptyDir": {"sizeLimit": "4Gi"}},
        {"name": "models", "persistentVolumeClaim": {"claimName": target.models_claim}},
    ]


def server_container(target: Target, server: ServerCommand, name: str, mounts: list[Json]) -> Json:
    return {
        "name": name,
        "image": image(target),
        "imagePullPolicy": "IfNotPresent",
        "command": command(target),
        "args": [literal(word) for word in server.arguments],
        "env": environment(target, server),
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        "resources": resources(target),
        **probes(target),
        "lifecycle": lifecycle(target),
        "securityContext": container_security(target),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }


def wait_for_models(target: Target) -> Json:
    """Until the download is whole, a pod waits here instead of crashing in a loop; and what is wrong is said early."""
    folders = [folder for folder in (target.model_folder, target.draft_folder) if folder is not None]
    models = [word for folder in folders for word in ("--model", f"{MODEL_MOUNT}/{folder}")]
    runtime = ["--runtime", "vllm"] if target.runtime == "vllm" else []
    return {
        "name": "wait-for-models",
        "image": target.values.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["paceline", "deploy", "doctor"],
        "args": ["--only", "model", *runtime, "--wait", str(target.values.rollout.startup_minutes * 60), *models],
        "env": [{"name": "HOME", "value": HOME}],
        "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": container_security(target) | {"readOnlyRootFilesystem": True},
        "volumeMounts": [
            {"name": "models", "mountPath": MODEL_MOUNT, "readOnly": True},
            {"name": "home", "mountPath": HOME},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }


def scheduling(target: Target) -> Json:
    wanted = target.values.scheduling
    tolerations = [
        {key: value for key, value in toleration.model_dump().items() if value is not None}
        for toleration in wanted.tolerations
    ]
    if target.num_gpus and not any(
        toleration["key"] == target.values.resources.gpu_resource for toleration in tolerations
    ):
        tolerations.append({"key": target.values.resources.gpu_resource, "operator": "Exists", "effect": "NoSchedule"})
    found: Json = {}
    if wanted.node_selector:
        found["nodeSelector"] = dict(wanted.node_selector)
    if tolerations:
        found["tolerations"] = tolerations
    if wanted.priority_class:
        found["priorityClassName"] = wanted.priority_class
    if wanted.service_account:
        found["serviceAccountName"] = wanted.service_account
    return found


def pod_settings(target: Target) -> Json:
    """What stands beside the containers."""
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,  # a Service 'vllm' in the namespace would set VLLM_PORT=tcp://...
        "terminationGracePeriodSeconds": target.termination_seconds,
        "securityContext": pod_security(target),
        **scheduling(target),
    }
