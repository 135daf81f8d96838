"""check_files: every layer over every document, in the order of the files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from paceline.deploy.check import builtin
from paceline.deploy.check.container_rules import container_findings
from paceline.deploy.check.crds import CrdSchemas
from paceline.deploy.check.documents import read_documents
from paceline.deploy.check.field_values import value_findings
from paceline.deploy.check.findings import Document, Finding, Report, error
from paceline.deploy.check.kserve import kserve_findings
from paceline.deploy.check.kustomize import is_kustomization, kustomization_findings
from paceline.deploy.check.object_names import name_findings
from paceline.deploy.check.pod_specs import PodSpec, pod_specs
from paceline.deploy.check.pods import pod_findings
from paceline.deploy.check.promql import has_promtool, promql_findings, queries_of
from paceline.deploy.check.quantities import quantity_findings, resource_findings
from paceline.deploy.check.secrets import missing_secrets, reference_findings, secret_findings
from paceline.deploy.check.services import selection_findings
from paceline.deploy.check.together import change_findings, together_findings, volumes_of_runtime

# Custom resources whose fields have the meaning that they have in Kubernetes' own kinds.
_LIKE_BUILTIN = (
    "InferenceService", "ServingRuntime", "ClusterServingRuntime", "LLMInferenceService", "ScaledObject",
    "LeaderWorkerSet",
)  # fmt: skip


def check_files(
    paths: Sequence[Path],
    *,
    kubernetes_version: str = builtin.DEFAULT_VERSION,
    crds: Path | None = None,
    previous: Path | None = None,
) -> Report:
    """Raises ConfigurationError where files cannot be read or hold no manifests."""
    documents = read_documents(paths)
    schemas = CrdSchemas.read(crds) if crds else None
    before = read_documents([previous]) if previous else []
    report = Report(num_documents=sum(not is_kustomization(document.content) for document in documents))
    unchecked: set[str] = set()
    for document in documents:
        if is_kustomization(document.content):
            report.add(document, list(kustomization_findings(Path(document.file), document.content)))
            continue
        found = [*_schema_findings(document, kubernetes_version, schemas, unchecked)]
        report.add(document, found + _shaped(document, documents, before))
    report.notes += _notes(unchecked, schemas) + _notes_on_surroundings(documents)
    return report


def _schema_findings(
    document: Document, kubernetes_version: str, schemas: CrdSchemas | None, unchecked: set[str]
) -> Iterator[Finding]:
    content = document.content
    if not isinstance(content.get("metadata"), dict) or not content["metadata"].get("name"):
        yield error("$.metadata.name", "is missing.")
    if schemas is not None and (content["apiVersion"], content["kind"]) in schemas:
        yield from schemas.findings(content)
    elif not builtin.is_builtin(content):
        unchecked.add(f"{content['kind']} ({content['apiVersion']})")
    elif builtin.is_available():
        yield from builtin.builtin_findings(content, kubernetes_version)
    else:
        unchecked.add("Kubernetes' own kinds")


def _shaped(document: Document, documents: Sequence[Document], before: Sequence[Document]) -> list[Finding]:
    """The rules take an object's shape for granted; where it is another, no schema has been there to say so."""
    found: list[Finding] = []
    wrong_shape = False
    for findings in _own_findings(document, documents, before):
        try:
            found += findings
        except (AttributeError, TypeError, KeyError, ValueError):
            wrong_shape = True
    if wrong_shape:
        what = f"is not shaped as a {document.kind} is: somewhere a list, a mapping or a text is another."
        found.append(error("$", what))
    return list(dict.fromkeys(found))


def _own_findings(
    document: Document, documents: Sequence[Document], before: Sequence[Document]
) -> Iterator[Iterable[Finding]]:
    content = document.content
    if builtin.is_builtin(content) or content["kind"] in _LIKE_BUILTIN:
        yield value_findings(content)
        yield quantity_findings(content)
    yield name_findings(content)
    for pod in pod_specs(content):
        yield container_findings(pod)
        yield resource_findings(pod)
        yield pod_findings(_with_runtime(pod, document, documents))
    yield kserve_findings(content)
    yield secret_findings(content)
    yield promql_findings(content)
    yield selection_findings(document, documents)
    yield reference_findings(content, documents)
    yield together_findings(document, documents)
    yield change_findings(document, before)


def _with_runtime(pod: PodSpec, document: Document, documents: Sequence[Document]) -> PodSpec:
    if document.kind != "InferenceService":
        return pod
    return replace(pod, other_volumes=volumes_of_runtime(documents, document.content))


def _notes(unchecked: set[str], schemas: CrdSchemas | None) -> list[str]:
    notes = []
    if "Kubernetes' own kinds" in unchecked:
        notes.append(
            "Kubernetes' own kinds were not checked against their schemas: pip install 'paceline[deploy]' brings them."
        )
    custom = sorted(unchecked - {"Kubernetes' own kinds"})
    if custom:
        notes.append(
            f"No schema for {', '.join(custom)}: give the CRDs with --crds (kubectl get crd -o yaml > crds.yaml), or "
            "ask a cluster with --server."
        )
    if schemas is not None and not schemas.evaluates_cel:
        notes.append("The CRDs' CEL rules were not evaluated: pip install 'paceline[deploy]' brings the evaluator.")
    return notes


def _notes_on_surroundings(documents: Sequence[Document]) -> list[str]:
    notes, secrets = [], missing_secrets(documents)
    if secrets:
        notes.append(f"Not among these files, so they must be in the cluster: Secrets {', '.join(secrets)}.")
    if not has_promtool() and any(any(queries_of(document.content)) for document in documents):
        notes.append("PromQL was looked at lightly: install promtool (of Prometheus) to have it read.")
    return notes
