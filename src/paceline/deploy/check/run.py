"""check_files: every layer over every document, in the order of the files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.deploy.check import builtin
from paceline.deploy.check.claims import claim_findings
from paceline.deploy.check.container_rules import container_findings
from paceline.deploy.check.crds import CrdSchemas
from paceline.deploy.check.documents import read_documents
from paceline.deploy.check.engine_args import engine_findings
from paceline.deploy.check.field_values import value_findings
from paceline.deploy.check.findings import Document, Finding, Report, error
from paceline.deploy.check.kserve import kserve_findings
from paceline.deploy.check.kustomize import is_kustomization, kustomization_findings
from paceline.deploy.check.model_places import place_findings
from paceline.deploy.check.object_names import name_findings
from paceline.deploy.check.pod_specs import PodSpec, pod_specs
from paceline.deploy.check.pods import pod_findings
from paceline.deploy.check.promql import has_promtool, promql_findings, queries_of
from paceline.deploy.check.quantities import quantity_findings, resource_findings
from paceline.deploy.check.secrets import missing_secrets, reference_findings, secret_findings
from paceline.deploy.check.server_commands import command_findings
from paceline.deploy.check.services import selection_findings
from paceline.deploy.check.together import change_findings, together_findings, volumes_of_runtime
from paceline.deploy.secrecy import nothing_secret_in_errors, secrets_of
from paceline.errors import ConfigurationError, did_you_mean
from paceline.extras import to_install

# Custom resources whose fields have the meaning that they have in Kubernetes' own kinds.
_LIKE_BUILTIN = (
    "InferenceService", "ServingRuntime", "ClusterServingRuntime", "LLMInferenceService", "ScaledObject",
    "LeaderWorkerSet",
)  # fmt: skip
_WRONG_SHAPE = (AttributeError, TypeError, KeyError, ValueError)


def check_files(
    paths: Sequence[Path],
    *,
    kubernetes_version: str = builtin.DEFAULT_VERSION,
    crds: Path | None = None,
    previous: Path | None = None,
) -> Report:
    """Raises ConfigurationError where files cannot be read or hold no manifests."""
    with nothing_secret_in_errors():
        try:
            return _check(paths, kubernetes_version, crds, previous)
        except OSError as fault:  # a name that no file can have, a folder that may not be looked into
            name = str(fault.filename)[:100]
            raise ConfigurationError(f"Cannot read {name}: {fault.strerror or fault}.") from None


def _check(paths: Sequence[Path], kubernetes_version: str, crds: Path | None, previous: Path | None) -> Report:
    documents = read_documents(paths)
    schemas = CrdSchemas.read(crds) if crds else None
    before = [each for each in read_documents([previous]) if _is_readable(each)] if previous else []
    report = Report(
        num_documents=sum(not is_kustomization(document.content) for document in documents),
        hidden=frozenset().union(*(secrets_of(document.original) for document in documents)),
    )
    unchecked: set[str] = set()
    objects = [document for document in documents if not is_kustomization(document.content)]
    alone = {id(document): _collect(_alone(document)) for document in objects}
    # One that the rules cannot read is no witness about others.
    sound = [document for document in objects if alone[id(document)].is_shaped and _is_readable(document)]
    for document in documents:
        if is_kustomization(document.content):
            report.add(document, list(kustomization_findings(Path(document.file), document.original)))
            continue
        found = [*_schema_findings(document, kubernetes_version, schemas, unchecked)]
        others = sound if any(other is document for other in sound) else [*sound, document]
        report.add(document, found + _told(document, alone[id(document)], _collect(_among(document, others, before))))
    report.note(*_notes(unchecked, schemas), *_notes_on_surroundings(sound))
    return report


def _schema_findings(
    document: Document, kubernetes_version: str, schemas: CrdSchemas | None, unchecked: set[str]
) -> Iterator[Finding]:
    content = document.content
    if not isinstance(content.get("metadata"), dict) or not content["metadata"].get("name"):
        yield error("$.metadata.name", "is missing.")
    if schemas is not None and (content["apiVersion"], content["kind"]) in schemas:
        yield from schemas.findings(content)
    elif schemas is not None and (kinds := schemas.kinds_of(content["apiVersion"])):
        there = did_you_mean(content["kind"], kinds) or f" There are: {', '.join(kinds)}."
        yield error("$.kind", f"{content['apiVersion']} has no {content['kind']} in these CRDs.{there}")
    elif not builtin.is_builtin(content):
        unchecked.add(f"{content['kind']} ({content['apiVersion']})")
    elif builtin.is_available():
        yield from builtin.builtin_findings(content, kubernetes_version)
    else:
        unchecked.add("Kubernetes' own kinds")


@dataclass(frozen=True, slots=True)
class _Collected:
    findings: tuple[Finding, ...]
    is_shaped: bool  # as the rules take for granted


def _collect(rules: Iterator[Iterable[Finding]]) -> _Collected:
    """What each rule finds; one that stumbles over the object's shape keeps the others from nothing."""
    found: list[Finding] = []
    is_shaped = True
    try:
        for findings in rules:
            try:
                found += findings
            except _WRONG_SHAPE:
                is_shaped = False
    except _WRONG_SHAPE:
        is_shaped = False
    return _Collected(tuple(found), is_shaped)


def _told(document: Document, *collected: _Collected) -> list[Finding]:
    found = [finding for each in collected for finding in each.findings]
    if not all(each.is_shaped for each in collected):
        what = f"is not shaped as a {document.kind} is: somewhere a list, a mapping or a text is another."
        found.append(error("$", what))
    return list(dict.fromkeys(found))


def _is_readable(document: Document) -> bool:
    """By the rules that look at other objects."""
    try:
        missing_secrets([document])
        any(queries_of(document.content))
        volumes_of_runtime([document], {})
    except _WRONG_SHAPE:
        return False
    return _collect(_among(document, [document], [document])).is_shaped


def _alone(document: Document) -> Iterator[Iterable[Finding]]:
    content = document.content
    if builtin.is_builtin(content) or content["kind"] in _LIKE_BUILTIN:
        yield value_findings(content)
        yield quantity_findings(content)
    yield name_findings(content)
    for pod in pod_specs(content):
        yield container_findings(pod)
        yield resource_findings(pod)
        yield command_findings(pod)
    yield engine_findings(content)
    yield kserve_findings(content)
    yield secret_findings(document.original)
    yield promql_findings(content)


def _among(
    document: Document, documents: Sequence[Document], before: Sequence[Document]
) -> Iterator[Iterable[Finding]]:
    content = document.content
    for pod in pod_specs(content):
        yield pod_findings(_with_runtime(pod, document, documents))
    yield selection_findings(document, documents)
    yield reference_findings(content, documents)
    yield claim_findings(document, documents)
    yield place_findings(document, documents)
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
            f"Kubernetes' own kinds were not checked against their schemas: {to_install('deploy')} brings them."
        )
    custom = sorted(unchecked - {"Kubernetes' own kinds"})
    if custom:
        notes.append(
            f"No schema for {', '.join(custom)}: give the CRDs with --crds (kubectl get crd -o yaml > crds.yaml), or "
            "ask a cluster with --server."
        )
    if schemas is not None and not schemas.evaluates_cel:
        notes.append(f"The CRDs' CEL rules were not evaluated: {to_install('deploy')} brings the evaluator.")
    return notes


def _notes_on_surroundings(documents: Sequence[Document]) -> list[str]:
    notes, secrets = [], missing_secrets(documents)
    if secrets:
        notes.append(f"Not among these files, so they must be in the cluster: Secrets {', '.join(secrets)}.")
    if not has_promtool() and any(any(queries_of(document.content)) for document in documents):
        notes.append("PromQL was looked at lightly: install promtool (of Prometheus) to have it read.")
    return notes
