"""The claims, and the Job that fills one of them from a model hub."""

from __future__ import annotations

import hashlib
import json

from paceline.deploy import pod
from paceline.deploy.pod import Json
from paceline.deploy.target import DOWNLOAD, MODEL_MOUNT, Target
from paceline.deploy.values import Claim


def claims(target: Target) -> list[Json]:
    storage = target.values.storage
    named = ((storage.models, target.models_claim), (storage.compile_cache, target.compile_cache_claim))
    return [_claim(target, claim, name) for claim, name in named if claim.existing_claim is None]


def _claim(target: Target, claim: Claim, name: str) -> Json:
    storage_class = {} if claim.storage_class is None else {"storageClassName": claim.storage_class}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": target.values.namespace, "labels": target.labels("storage")},
        "spec": {
            "accessModes": [claim.access_mode],
            **storage_class,
            "resources": {"requests": {"storage": claim.size}},
        },
    }


def download_job(target: Target) -> Json | None:
    """Each model appears under its name when it is whole; run again, it finds what is there. None: nothing to fetch.

    A Job's template cannot be changed, so its name carries a digest of it: another image is another Job.
    """
    values = target.values
    if not values.storage.models.download:
        return None
    sources = [("target", values.model.source, target.model_folder)]
    if values.draft is not None and target.draft_folder is not None:
        sources.append(("draft", values.draft.source, target.draft_folder))
    template = {
        "metadata": {"labels": target.labels(DOWNLOAD)},
        "spec": {
            "restartPolicy": "OnFailure",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": pod.pod_security(target),
            **_placement(target),
            "containers": [_download(target, *source) for source in sources],
            "volumes": [
                {"name": "models", "persistentVolumeClaim": {"claimName": target.models_claim}},
                {"name": "home", "emptyDir": {"sizeLimit": "4Gi"}},
                {"name": "tmp", "emptyDir": {"sizeLimit": "4Gi"}},
            ],
        },
    }
    digest = hashlib.sha256(json.dumps(template).encode()).hexdigest()[:8]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": f"{target.name}-download-{digest}",
            "namespace": values.namespace,
            "labels": target.labels(DOWNLOAD),
        },
        "spec": {
            "backoffLimit": 6,
            "activeDeadlineSeconds": 6 * 3600,
            "ttlSecondsAfterFinished": 7 * 24 * 3600,
            "template": template,
        },
    }


def _placement(target: Target) -> Json:
    """A claim that one node mounts at a time must be filled where it will be read, and beside a server that runs."""
    if target.values.storage.models.access_mode != "ReadWriteOnce":
        return {}
    beside = {"labelSelector": {"matchLabels": target.pod_selector()}, "topologyKey": "kubernetes.io/hostname"}
    preferred = [{"weight": 100, "podAffinityTerm": beside}]
    affinity = {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
    return {**pod.scheduling(target), "affinity": affinity}


def _download(target: Target, name: str, source: str, folder: str) -> Json:
    env: list[Json] = [{"name": "HOME", "value": pod.HOME}]
    token = target.values.secrets.hub_token
    if token is not None:
        env.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": token.name, "key": token.key}}})
    return {
        "name": name,
        "image": target.values.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["paceline", "models", "pull", pod.literal(source)],
        "args": ["--to", f"{MODEL_MOUNT}/{folder}"],
        "env": env,
        "resources": {"requests": {"cpu": "1", "memory": "4Gi"}, "limits": {"memory": "4Gi"}},
        "securityContext": pod.container_security(target) | {"readOnlyRootFilesystem": True},
        "volumeMounts": [
            {"name": "models", "mountPath": MODEL_MOUNT},
            {"name": "home", "mountPath": pod.HOME},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }
