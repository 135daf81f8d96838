"""Rules over several objects, and over an object and what it was before."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import prod

from paceline.deploy.check.findings import Document, Finding, Json, error, warning
from paceline.errors import did_you_mean

_RUNTIME_NAMES = ("vllm", "paceline")


def volumes_of_runtime(documents: Sequence[Document], content: Json) -> frozenset[str] | None:
    """The volumes that an InferenceService's pods have from its runtime; None: the runtime is not among these files."""
    model = (((content.get("spec") or {}).get("predictor")) or {}).get("model") or {}
    for document in documents:
        runtime = document.content
        if document.kind == "ServingRuntime" and _name(runtime) == model.get("runtime"):
            return frozenset(volume.get("name") for volume in (runtime.get("spec") or {}).get("volumes") or [])
    return None


def together_findings(document: Document, documents: Sequence[Document]) -> Iterator[Finding]:
    content = document.content
    first = next(other for other in documents if _identity(other.content) == _identity(content))
    built = first.is_built != document.is_built or (first.is_built and first.file != document.file)
    if first is not document and not built and _identity(content)[-1] is not None:
        yield error("$.metadata.name", f"the same object is in {first.file} already: the last one applied would win.")
    if document.kind == "Service" and _name(content) in _RUNTIME_NAMES:
        yield error(
            "$.metadata.name",
            f"a Service '{_name(content)}' puts {_name(content).upper()}_PORT into every pod of its namespace, which "
            "the runtime takes for its own setting. Choose another name.",
        )
    if document.kind == "ServiceMonitor":
        yield from _monitor_ports(content, documents)
    if document.kind == "InferenceService":
        yield from _runtime(content, documents)


def _runtime(content: Json, documents: Sequence[Document]) -> Iterator[Finding]:
    model = (((content.get("spec") or {}).get("predictor")) or {}).get("model") or {}
    wanted, path = model.get("runtime"), "$.spec.predictor.model"
    runtimes = {
        _name(other.content): other.content
        for other in documents
        if other.kind in ("ServingRuntime", "ClusterServingRuntime")
    }
    if wanted is None or not runtimes:
        return
    if wanted not in runtimes:
        yield warning(f"{path}.runtime", f"no runtime '{wanted}' is among these files.{did_you_mean(wanted, runtimes)}")
        return
    formats = [entry.get("name") for entry in runtimes[wanted]["spec"].get("supportedModelFormats") or []]
    name = (model.get("modelFormat") or {}).get("name")
    if formats and name not in formats:
        yield error(
            f"{path}.modelFormat", f"'{name}' is none of the runtime's formats: {', '.join(map(str, formats))}."
        )


def _monitor_ports(monitor: Json, documents: Sequence[Document]) -> Iterator[Finding]:
    wanted = ((monitor.get("spec") or {}).get("selector") or {}).get("matchLabels") or {}
    services = [
        other.content
        for other in documents
        if other.kind == "Service"
        and wanted.items() <= ((other.content.get("metadata") or {}).get("labels") or {}).items()
    ]
    yield from _scrape_times(monitor)
    if not any(document.kind == "Service" for document in documents):
        return
    if not services:
        yield error("$.spec.selector", "selects none of the Services among these files.")
    ports = {port.get("name") for service in services for port in (service.get("spec") or {}).get("ports") or []}
    for index, endpoint in enumerate((monitor.get("spec") or {}).get("endpoints") or []):
        if services and endpoint.get("port") not in (None, *ports):
            yield error(
                f"$.spec.endpoints[{index}].port", f"'{endpoint['port']}' is no port of the Service it selects."
            )


def _scrape_times(monitor: Json) -> Iterator[Finding]:
    for index, endpoint in enumerate((monitor.get("spec") or {}).get("endpoints") or []):
        interval, timeout = (_seconds(endpoint.get(name)) for name in ("interval", "scrapeTimeout"))
        if interval is not None and timeout is not None and timeout > interval:
            yield error(
                f"$.spec.endpoints[{index}].scrapeTimeout",
                f"{endpoint['scrapeTimeout']} is longer than the interval, {endpoint['interval']}: the operator "
                "refuses the monitor.",
            )


def _seconds(duration: object) -> int | None:
    found = re.fullmatch(r"([0-9]+)([smh])", str(duration))
    return None if found is None else int(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]


def change_findings(document: Document, previous: Sequence[Document]) -> Iterator[Finding]:
    """What cannot be changed in place."""
    before = next(
        (other.content for other in previous if _identity(other.content) == _identity(document.content)), None
    )
    if before is None:
        return
    old, new = before.get("spec") or {}, document.content.get("spec") or {}
    if document.kind == "LLMInferenceService" and _total(old) != _total(new):
        yield error(
            "$.spec.parallelism",
            f"the total size goes from {_total(old)} to {_total(new)}, which KServe refuses: delete the service first, "
            "or make one of another name and move the route.",
        )
    if document.kind in ("Deployment", "StatefulSet") and old.get("selector") != new.get("selector"):
        yield error("$.spec.selector", "cannot be changed: delete the object first.")
    if document.kind == "PersistentVolumeClaim":
        for field in ("accessModes", "storageClassName"):
            if old.get(field) != new.get(field):
                yield error(f"$.spec.{field}", "of a claim cannot be changed: make one of another name.")
    if document.kind == "Job" and old.get("template") != new.get("template"):
        yield error("$.spec.template", "of a Job cannot be changed: delete the finished Job before applying.")


def _total(spec: Json) -> int:
    parallelism = spec.get("parallelism") or {}
    return prod(size for name in ("data", "pipeline", "tensor") if isinstance(size := parallelism.get(name, 1), int))


def _identity(content: Json) -> tuple[object, ...]:
    metadata = content.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    group = str(content.get("apiVersion")).partition("/")[0]
    return (group, content.get("kind"), metadata.get("namespace"), metadata.get("name"))


def _name(content: Json) -> str:
    return str((content.get("metadata") or {}).get("name"))
