"""Claims that pods mount: whether they are there, and whether as many pods as there may be can mount them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from paceline.deploy.check.findings import Document, Finding, Json, warning
from paceline.deploy.check.pod_specs import pod_specs
from paceline.deploy.check.walk import texts
from paceline.errors import did_you_mean

_OF_ONE_NODE = ("ReadWriteOnce", "ReadWriteOncePod")


def claim_findings(document: Document, documents: Sequence[Document]) -> Iterator[Finding]:
    content = document.content
    there = {
        _name(other.content): other.content
        for other in documents
        if other.kind == "PersistentVolumeClaim" and _namespace(other.content) == _namespace(content)
    }
    most = _most_replicas(content, documents)
    for path, name in dict(_mounted(content)).items():
        if name not in there:
            guess = did_you_mean(name, there)
            if guess:
                yield warning(path, f"no claim '{name}' is among these files.{guess}")
            continue
        modes = there[name]["spec"].get("accessModes") or []
        if most > 1 and modes and all(mode in _OF_ONE_NODE for mode in modes):
            yield warning(
                path,
                f"the claim '{name}' is {', '.join(modes)}, and there may be {most} pods: those on another node "
                "cannot mount it. Use ReadWriteMany.",
            )


def _mounted(content: Json) -> Iterator[tuple[str, str]]:
    for pod in pod_specs(content):
        for index, volume in enumerate(pod.spec.get("volumes") or []):
            name = (volume.get("persistentVolumeClaim") or {}).get("claimName")
            if name is not None:
                yield f"{pod.path}.volumes[{index}]", str(name)
    if content.get("kind") in ("InferenceService", "LLMInferenceService"):
        for path, text in texts(content.get("spec"), "$.spec"):
            found = re.match(r"pvc://([^/]+)", text)
            if found is not None:
                yield path, found[1]


def _most_replicas(content: Json, documents: Sequence[Document]) -> int:
    """That a Deployment may have, or that KServe may make."""
    spec: Any = content.get("spec") or {}
    part = spec.get("predictor") or {} if content.get("kind") == "InferenceService" else spec
    if content.get("kind") not in ("Deployment", "InferenceService", "LLMInferenceService"):
        return 1
    numbers = [part.get("replicas"), part.get("maxReplicas"), (part.get("scaling") or {}).get("maxReplicas")]
    numbers += [scaler["spec"].get("maxReplicaCount") for scaler in scalers_of(content, documents)]
    return max([number for number in numbers if isinstance(number, int)], default=1)


def scalers_of(content: Json, documents: Sequence[Document]) -> list[Json]:
    """The ScaledObjects among these files that own its number of replicas."""
    wanted = (content.get("kind"), _name(content), _namespace(content))
    found = []
    for other in documents:
        if other.kind == "ScaledObject":
            target = (other.content.get("spec") or {}).get("scaleTargetRef") or {}
            if (target.get("kind", "Deployment"), str(target.get("name")), _namespace(other.content)) == wanted:
                found.append(other.content)
    return found


def _name(content: Json) -> str:
    return str((content.get("metadata") or {}).get("name"))


def _namespace(content: Json) -> Any:
    return (content.get("metadata") or {}).get("namespace")
