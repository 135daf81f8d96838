"""Where pods are described: every kind that has containers, with what else decides what its pods will be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from paceline.deploy.check.findings import Json

_TEMPLATES = ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job")
_RESTARTS_OF_JOBS = ("OnFailure", "Never")
# Volumes of KServe's LLM template, into which an LLMInferenceService is merged.
_LLM_TEMPLATE_VOLUMES = frozenset({"home", "dshm", "model-cache", "tls-certs"})


@dataclass(frozen=True, slots=True)
class PodSpec:
    path: str
    spec: Json
    # Volumes that come from elsewhere; None: from where this check cannot see.
    other_volumes: frozenset[str] | None = frozenset()
    inherits_probes: bool = False  # merged into KServe's template, which has the handlers
    serves: bool = True  # for long, with clients; a Job does not
    is_whole: bool = False  # Kubernetes' own kinds: nothing is merged in
    is_of_node: bool = False  # a DaemonSet's, which may be there for the node itself
    restarts: tuple[str, ...] | None = None  # what restartPolicy may be; None: anything


def pod_specs(content: Json) -> Iterator[PodSpec]:
    kind, spec = content.get("kind"), _mapping(content.get("spec"))
    if kind == "Pod":
        yield PodSpec("$.spec", spec, is_whole=True)
    elif kind in _TEMPLATES:
        of_template = _mapping(_mapping(spec.get("template")).get("spec"))
        claims = [_mapping(_mapping(claim).get("metadata")) for claim in spec.get("volumeClaimTemplates") or []]
        yield PodSpec(
            "$.spec.template.spec",
            of_template,
            frozenset(str(metadata.get("name")) for metadata in claims),
            serves=kind != "Job",
            is_whole=True,
            is_of_node=kind == "DaemonSet",
            restarts=_RESTARTS_OF_JOBS if kind == "Job" else ("Always",),
        )
    elif kind == "CronJob":
        template = _mapping(_mapping(_mapping(spec.get("jobTemplate")).get("spec")).get("template"))
        yield PodSpec(
            "$.spec.jobTemplate.spec.template.spec",
            _mapping(template.get("spec")),
            serves=False,
            is_whole=True,
            restarts=_RESTARTS_OF_JOBS,
        )
    elif kind in ("ServingRuntime", "ClusterServingRuntime"):
        yield PodSpec("$.spec", spec)
        if "workerSpec" in spec:
            yield PodSpec("$.spec.workerSpec", _mapping(spec["workerSpec"]), None, serves=False)
    elif kind == "LeaderWorkerSet":
        for name in ("leaderTemplate", "workerTemplate"):
            template = _mapping(_mapping(spec.get("leaderWorkerTemplate")).get(name))
            if template:
                path = f"$.spec.leaderWorkerTemplate.{name}.spec"
                yield PodSpec(path, _mapping(template.get("spec")), serves=name == "leaderTemplate", is_whole=True)
    elif kind == "InferenceService":
        yield from _inference_service(spec)
    elif kind == "LLMInferenceService":
        for path, part in (("$.spec", spec), ("$.spec.prefill", _mapping(spec.get("prefill")))):
            for name in ("template", "worker"):
                if name in part:
                    yield PodSpec(f"{path}.{name}", _mapping(part[name]), _LLM_TEMPLATE_VOLUMES, inherits_probes=True)


def _inference_service(spec: Json) -> Iterator[PodSpec]:
    """The model's container is merged into the runtime's, whose volumes are in another object."""
    for component in ("predictor", "transformer", "explainer"):
        part = _mapping(spec.get(component))
        if part:
            merged = dict(part)
            model = part.get("model")
            if isinstance(model, dict):
                merged["containers"] = [*(part.get("containers") or []), {"name": "kserve-container", **model}]
            yield PodSpec(f"$.spec.{component}", merged, None)


def containers(spec: Json) -> Iterator[tuple[str, Json]]:
    for field in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(field) or []):
            if isinstance(container, dict):
                yield f".{field}[{index}]", container


def command_words(container: Json) -> list[str]:
    parts = (container.get("command") or [], container.get("args") or [])
    return [str(word) for part in parts for word in ([part] if isinstance(part, str) else part)]


def _mapping(value: Any) -> Json:
    return value if isinstance(value, dict) else {}
