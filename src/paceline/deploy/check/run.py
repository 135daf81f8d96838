"""check_files: every layer over every document, in the order of the files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from paceline.deploy.check import builtin
from paceline.deploy.check.crds import CrdSchemas
from paceline.deploy.check.documents import read_documents
from paceline.deploy.check.findings import Document, Finding, Report, error
from paceline.deploy.check.kserve import kserve_findings
from paceline.deploy.check.pod_specs import PodSpec, pod_specs
from paceline.deploy.check.pods import pod_findings
from paceline.deploy.check.together import change_findings, together_findings, volumes_of_runtime


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
    report = Report(num_documents=len(documents))
    unchecked: set[str] = set()
    for document in documents:
        report.add(document, list(_schema_findings(document, kubernetes_version, schemas, unchecked)))
        report.add(document, _shaped(document, documents, before))
    report.notes += _notes(unchecked, schemas)
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
    try:
        return list(_own_findings(document, documents, before))
    except (AttributeError, TypeError, KeyError, ValueError):
        return [error("$", f"is not shaped as a {document.kind} is: somewhere a list, a mapping or a text is another.")]


def _own_findings(document: Document, documents: Sequence[Document], before: Sequence[Document]) -> Iterator[Finding]:
    for pod in pod_specs(document.content):
        yield from pod_findings(_with_runtime(pod, document, documents))
    yield from kserve_findings(document.content)
    yield from together_findings(document, documents)
    yield from change_findings(document, before)


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
