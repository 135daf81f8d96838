"""Names, labels and annotations that the API server refuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from paceline.deploy.check.findings import Finding, Json, error
from paceline.deploy.check.walk import Field, fields
from paceline.deploy.names import LABEL, wrong_key, wrong_label, wrong_subdomain, wrong_value

# Of these the name is one part of a DNS name, with its most characters; of all others, a whole one.
_LABEL_NAMES = {
    "Service": 63, "Namespace": 63, "Job": 63, "CronJob": 52, "StatefulSet": 63, "InferenceService": 63,
    "LLMInferenceService": 63,
}  # fmt: skip
_LETTER_FIRST = ("Service", "InferenceService", "LLMInferenceService")  # RFC 1035
_FREE_NAMES = ("Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding", "CustomResourceDefinition")
_SELECTORS = ("matchLabels", "nodeSelector")
# Beside metadata; anywhere else labels may be of another sort, such as Prometheus'.
_WITH_LABELS = {
    "InferenceService": ("predictor", "transformer", "explainer"),
    "LLMInferenceService": ("spec", "prefill"),
}


def name_findings(content: Json) -> Iterator[Finding]:
    metadata = content["metadata"] if isinstance(content.get("metadata"), dict) else {}
    yield from _object_name(str(content.get("kind")), metadata.get("name"))
    namespace = metadata.get("namespace")
    wrong = None if namespace is None else wrong_label(namespace)
    if wrong is not None:
        yield error("$.metadata.namespace", f"{namespace!r} {wrong}.")
    for field in fields(content):
        if isinstance(field.value, dict):
            yield from _labels(field, str(content.get("kind")))


def _object_name(kind: str, name: Any) -> Iterator[Finding]:
    if not name or kind in _FREE_NAMES:  # a missing one is said elsewhere
        return
    most = _LABEL_NAMES.get(kind)
    letter_first = kind in _LETTER_FIRST
    wrong = wrong_subdomain(name) if most is None else _wrong_label(name, most, letter_first)
    if wrong is not None:
        yield error("$.metadata.name", f"{str(name)[:80]!r}: the name of a {kind} {wrong}.")


def _wrong_label(name: Any, most: int, letter_first: bool) -> str | None:
    if not letter_first:
        return wrong_label(name, most)
    wrong = wrong_label(name, most, pattern=LABEL)
    return f"{wrong}, beginning with a letter" if wrong and wrong_label(name, most) is None else wrong


def _labels(field: Field, kind: str) -> Iterator[Finding]:
    is_selector = field.name in _SELECTORS or (kind == "Service" and field.path == "$.spec.selector")
    is_of_pods = field.within == "metadata" or field.within in _WITH_LABELS.get(kind, ())
    if is_selector or (field.name == "labels" and is_of_pods):
        for key, value in field.value.items():
            yield from _said(field.path, key, value, wrong_value(value))
    if field.name == "annotations" and is_of_pods:
        for key, value in field.value.items():
            yield from _said(field.path, key, value, None if isinstance(value, str) else wrong_value(value))


def _said(path: str, key: Any, value: Any, wrong: str | None) -> Iterator[Finding]:
    wrong_name = wrong_key(key)
    if wrong_name is not None:
        yield error(path, f"the key {str(key)[:80]!r} {wrong_name}.")
    if wrong is not None:
        yield error(f"{path}.{key}", f"{str(value)[:80]!r} {wrong}.")
