"""What finds pods by their labels and ports: Services, budgets and policies; and what finds Services by their names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.deploy.check.claims import scalers_of
from paceline.deploy.check.findings import Document, Finding, Json, error, warning
from paceline.deploy.check.pod_specs import containers, pod_specs
from paceline.deploy.names import wrong_label, wrong_port_name
from paceline.errors import did_you_mean

_TEMPLATES = ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job")
_KSERVE = ("serving.kserve.io/", "kserve.io/")  # labels that it gives pods by itself, all of which are not known here


@dataclass(frozen=True, slots=True)
class _Pods:
    """Those of one object."""

    namespace: Any
    labels: Json
    port_names: frozenset[str]
    port_numbers: frozenset[int]
    is_whole: bool  # nothing is merged in from where this check cannot see


def selection_findings(document: Document, documents: Sequence[Document]) -> Iterator[Finding]:
    content, spec = document.content, document.content.get("spec") or {}
    if document.kind == "Service":
        yield from _service(content, spec, documents)
    if document.kind in _TEMPLATES:
        yield from _own_pods(document.kind, spec)
    if document.kind in ("PodDisruptionBudget", "NetworkPolicy"):
        field = "selector" if document.kind == "PodDisruptionBudget" else "podSelector"
        wanted = (spec.get(field) or {}).get("matchLabels") or {}
        if wanted and not _selected(wanted, content, documents, none_is_fine=True):
            yield warning(f"$.spec.{field}", "selects none of the pods among these files.")
    if document.kind in ("Deployment", "StatefulSet") and "replicas" in spec and scalers_of(content, documents):
        yield warning("$.spec.replicas", "a ScaledObject owns the number, and each apply sets it back. Leave it out.")
    if document.kind == "NetworkPolicy":
        yield from _admitted(content, spec, documents)
    if document.kind == "HTTPRoute":
        yield from _backends(content, spec, documents)
    if document.kind == "Ingress":
        yield from _ingress(content, spec, documents)
    if document.kind == "HorizontalPodAutoscaler" and scalers_of(_scaled_by(content, spec), documents):
        yield error(
            "$.spec.scaleTargetRef",
            "a ScaledObject scales the same pods, by an autoscaler of its own: the two undo each other. Keep one.",
        )
    if document.kind == "ScaledObject":
        yield from _scaled(content, spec, documents)


def _service(content: Json, spec: Json, documents: Sequence[Document]) -> Iterator[Finding]:
    ports = spec.get("ports") or []
    if not ports and spec.get("clusterIP") != "None" and spec.get("type") != "ExternalName":
        yield error("$.spec.ports", "is missing.")
    names = [port.get("name") for port in ports]
    pairs = [(port.get("port"), port.get("protocol", "TCP")) for port in ports]
    for index, port in enumerate(ports):
        place, name, target = f"$.spec.ports[{index}]", names[index], port.get("targetPort")
        if name is None and len(ports) > 1:
            yield error(place, "needs a name, as there are several ports.")
        if name is not None and (wrong := wrong_label(name)):
            yield error(f"{place}.name", f"{name!r} {wrong}.")
        if name is not None and names.index(name) < index:
            yield error(f"{place}.name", f"two ports are called '{name}'.")
        if pairs.index(pairs[index]) < index:
            yield error(place, f"port {pairs[index][0]} ({pairs[index][1]}) is there twice.")
        if isinstance(target, str) and (wrong := wrong_port_name(target)):
            yield error(f"{place}.targetPort", f"{target!r} {wrong}.")
    wanted = spec.get("selector")
    if not wanted:
        return
    selected = _selected(wanted, content, documents)
    if selected is not None and not selected:
        yield error("$.spec.selector", "selects none of the pods among these files: the Service would reach nothing.")
    if selected:
        yield from _targets(ports, selected)


def _targets(ports: Sequence[Json], selected: Sequence[_Pods]) -> Iterator[Finding]:
    names = sorted({name for pods in selected for name in pods.port_names})
    numbers = {number for pods in selected for number in pods.port_numbers}
    if not all(pods.is_whole for pods in selected) or not (names or numbers):
        return  # ports are for information only
    for index, port in enumerate(ports):
        target = port.get("targetPort", port.get("port"))
        place = f"$.spec.ports[{index}].targetPort"
        if isinstance(target, str) and target not in names:
            there = f" There are: {', '.join(names)}." if names else " They name none."
            yield error(place, f"'{target}' is no port of the pods it selects.{did_you_mean(target, names) or there}")
        elif isinstance(target, int) and target not in numbers:
            there = ", ".join(map(str, sorted(numbers)))
            yield warning(place, f"no container of the pods it selects has port {target}; they have {there}.")


def _own_pods(kind: str, spec: Json) -> Iterator[Finding]:
    labels = (((spec.get("template") or {}).get("metadata")) or {}).get("labels") or {}
    wanted = (spec.get("selector") or {}).get("matchLabels")
    if kind != "Job" and wanted is not None and not wanted.items() <= labels.items():
        yield error(
            "$.spec.selector", "does not select the pods of its own template: matchLabels must be labels there."
        )


def _admitted(content: Json, spec: Json, documents: Sequence[Document]) -> Iterator[Finding]:
    wanted = (spec.get("podSelector") or {}).get("matchLabels") or {}
    selected = (_selected(wanted, content, documents) or []) if wanted else []
    there = {number for pods in selected for number in pods.port_numbers}
    if not there or not all(pods.is_whole for pods in selected):
        return
    for at, rule in enumerate(spec.get("ingress") or []):
        numbers = [port.get("port") for port in rule.get("ports") or [] if "endPort" not in port]
        if numbers and all(isinstance(number, int) and number not in there for number in numbers):
            yield warning(
                f"$.spec.ingress[{at}].ports", f"admits {numbers}, and the pods it selects have {sorted(there)}."
            )


def _backends(content: Json, spec: Json, documents: Sequence[Document]) -> Iterator[Finding]:
    services = _services(content, documents)
    for at, rule in enumerate(spec.get("rules") or []):
        for index, backend in enumerate(rule.get("backendRefs") or []):
            place, name = f"$.spec.rules[{at}].backendRefs[{index}]", backend.get("name")
            if not services or backend.get("kind", "Service") != "Service" or "namespace" in backend:
                continue
            if name not in services:
                yield warning(place, f"no Service '{name}' is among these files.{did_you_mean(str(name), services)}")
                continue
            ports = [port.get("port") for port in services[name]["spec"].get("ports") or []]
            if backend.get("port") not in ports:
                yield error(place, f"the Service '{name}' has no port {backend.get('port')}; it has {ports}.")


def _ingress(content: Json, spec: Json, documents: Sequence[Document]) -> Iterator[Finding]:
    services = _services(content, documents)
    backends = [("$.spec.defaultBackend", spec.get("defaultBackend"))]
    for at, rule in enumerate(spec.get("rules") or []):
        for index, entry in enumerate((rule.get("http") or {}).get("paths") or []):
            backends.append((f"$.spec.rules[{at}].http.paths[{index}].backend", entry.get("backend")))
    for place, backend in backends:
        service = (backend or {}).get("service") or {}
        name, wanted = service.get("name"), service.get("port") or {}
        if name is None or not services:
            continue
        if name not in services:
            yield warning(place, f"no Service '{name}' is among these files.{did_you_mean(str(name), services)}")
            continue
        ports = services[name]["spec"].get("ports") or []
        field = "name" if "name" in wanted else "number"
        there = [port.get("name" if field == "name" else "port") for port in ports]
        if wanted.get(field) not in there:
            yield error(place, f"the Service '{name}' has no port {wanted.get(field)}; it has {there}.")


def _scaled_by(content: Json, spec: Json) -> Json:
    """The object that an autoscaler names, as far as it says."""
    target = spec.get("scaleTargetRef") or {}
    metadata = {"name": target.get("name"), "namespace": _namespace(content)}
    return {"kind": target.get("kind"), "metadata": metadata}


def _services(content: Json, documents: Sequence[Document]) -> dict[str, Json]:
    return {
        _name(other.content): other.content
        for other in documents
        if other.kind == "Service" and _namespace(other.content) == _namespace(content)
    }


def _scaled(content: Json, spec: Json, documents: Sequence[Document]) -> Iterator[Finding]:
    target = spec.get("scaleTargetRef") or {}
    kind, name = target.get("kind", "Deployment"), target.get("name")
    there = [
        _name(other.content)
        for other in documents
        if other.kind == kind and _namespace(other.content) == _namespace(content)
    ]
    if there and name not in there:
        yield warning(
            "$.spec.scaleTargetRef", f"no {kind} '{name}' is among these files.{did_you_mean(str(name), there)}"
        )


def _selected(
    wanted: Json, content: Json, documents: Sequence[Document], *, none_is_fine: bool = False
) -> list[_Pods] | None:
    """None, or with `none_is_fine` what is true: no pods are among these files, or KServe's labels are asked for."""
    all_pods = [pods for other in documents for pods in _pods_of(other)]
    pods = [pods for pods in all_pods if pods.namespace == _namespace(content)]
    found = [each for each in pods if wanted.items() <= each.labels.items()]
    if not found and (not all_pods or _by_kserve(wanted, documents)):
        return all_pods or [_Pods(None, {}, frozenset(), frozenset(), False)] if none_is_fine else None
    return found


def _by_kserve(wanted: Json, documents: Sequence[Document]) -> bool:
    """KServe labels pods by its own rules: those of an object among these files are known by their name alone."""
    named = {_name(other.content) for other in documents if other.kind in ("InferenceService", "LLMInferenceService")}
    asks = any(str(key).startswith(_KSERVE) for key in wanted)
    return asks and (not named or bool(named & set(wanted.values())))


def _pods_of(document: Document) -> Iterator[_Pods]:
    content, kind = document.content, document.kind
    metadata, spec = content.get("metadata") or {}, content.get("spec") or {}
    name = metadata.get("name")
    if kind in _TEMPLATES:
        labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels") or {}
    elif kind == "Pod":
        labels = metadata.get("labels") or {}
    elif kind == "InferenceService":
        predictor = spec.get("predictor") or {}
        labels = {
            **(metadata.get("labels") or {}), **(predictor.get("labels") or {}), "component": "predictor",
            "serving.kserve.io/inferenceservice": name, "app": f"isvc.{name}-predictor",
        }  # fmt: skip
    elif kind == "LLMInferenceService":
        labels = {
            **(metadata.get("labels") or {}), **(spec.get("labels") or {}), "app.kubernetes.io/name": name,
            "app.kubernetes.io/part-of": "llminferenceservice", "kserve.io/component": "workload",
        }  # fmt: skip
    else:
        return
    ports = [
        port
        for pod in pod_specs(content)
        for path, container in containers(pod.spec)
        if path.startswith(".containers")
        for port in container.get("ports") or []
    ]
    yield _Pods(
        _namespace(content),
        labels,
        frozenset(str(port["name"]) for port in ports if port.get("name")),
        frozenset(port["containerPort"] for port in ports if isinstance(port.get("containerPort"), int)),
        kind in _TEMPLATES or kind == "Pod",
    )


def _name(content: Json) -> str:
    return str((content.get("metadata") or {}).get("name"))


def _namespace(content: Json) -> Any:
    return (content.get("metadata") or {}).get("namespace")
