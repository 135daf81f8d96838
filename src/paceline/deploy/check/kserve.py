"""What KServe refuses in its webhooks, and what it breaks without a word. LLMInferenceService: llm_template.py.

From KServe 0.20's behaviour, put in our own words; the CRDs' schemas and CEL rules do not hold these.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from paceline.deploy.check.findings import Finding, Json, error, warning
from paceline.deploy.check.llm_template import ADDITIONAL_ARGS, llm_findings
from paceline.deploy.check.pod_specs import command_words, containers, pod_specs
from paceline.deploy.target import VLLM_VERSION, version_in_tag
from paceline.errors import ConfigurationError, did_you_mean

# Another needs a ClusterStorageContainer of one's own.
_SCHEMES = ("pvc", "hf", "oci", "s3", "gs", "https", "http", "hdfs", "webhdfs", "file", "git")
_SCALERS = ("hpa", "keda", "external", "none")


def kserve_findings(content: Json) -> Iterator[Finding]:
    if content.get("kind") == "InferenceService":
        yield from _inference_service(content)
    if content.get("kind") in ("ServingRuntime", "ClusterServingRuntime"):
        yield from _runtime(content)
    if content.get("kind") == "LLMInferenceService":
        yield from _scheme("$.spec.model.uri", ((content.get("spec") or {}).get("model") or {}).get("uri"))
        yield from llm_findings(content)
    yield from _removed_flags(content)


def _inference_service(content: Json) -> Iterator[Finding]:
    annotations = (content.get("metadata") or {}).get("annotations") or {}
    mode = annotations.get("serving.kserve.io/deploymentMode")
    if mode == "RawDeployment":
        yield warning("$.metadata.annotations", "deploymentMode RawDeployment is deprecated: it is called Standard.")
    elif mode not in (None, "Standard", "Knative", "Serverless"):
        yield error("$.metadata.annotations", f"deploymentMode '{mode}' does not exist: Standard or Knative.")
    scaler = annotations.get("serving.kserve.io/autoscalerClass")
    if scaler not in (None, *_SCALERS):
        guess = did_you_mean(str(scaler), _SCALERS)
        there = ", ".join(_SCALERS)
        yield error("$.metadata.annotations", f"autoscalerClass '{scaler}' does not exist.{guess} There are: {there}.")
    predictor = (content.get("spec") or {}).get("predictor") or {}
    model = predictor.get("model") or {}
    if "storageUris" in predictor and ("storageUri" in model or "storage" in model):
        yield error("$.spec.predictor", "storageUri and storageUris exclude each other.")
    yield from _storage_uris(predictor.get("storageUris") or [])
    if "workerSpec" in predictor:
        yield from _multi_node(model, annotations)


def _runtime(content: Json) -> Iterator[Finding]:
    names = [container.get("name") for container in (content.get("spec") or {}).get("containers") or []]
    if names and "kserve-container" not in names:
        there = ", ".join(map(str, names))
        yield error("$.spec.containers", f"none is called 'kserve-container', the one that KServe starts: {there}.")


def _scheme(path: str, uri: object) -> Iterator[Finding]:
    scheme, mark, _ = str(uri).partition("://")
    if mark and scheme not in _SCHEMES:
        guess = did_you_mean(scheme, _SCHEMES) or f" There are: {', '.join(_SCHEMES)}."
        yield warning(path, f"KServe itself knows no '{scheme}://'.{guess}")


def _storage_uris(uris: list[Any]) -> Iterator[Finding]:
    path = "$.spec.predictor.storageUris"
    places = []
    for index, entry in enumerate(uris):
        if "path" in entry:
            yield error(f"{path}[{index}]", "the field is called mountPath, not path.")
        yield from _scheme(f"{path}[{index}].uri", entry.get("uri"))
        place = entry.get("mountPath", "/mnt/models")
        if not str(place).startswith("/") or PurePosixPath(place) == PurePosixPath("/"):
            yield error(f"{path}[{index}].mountPath", f"'{place}' must be an absolute folder below /.")
        if place in places:
            yield error(f"{path}[{index}].mountPath", f"two models would be mounted at {place}.")
        places.append(place)
    parents = {
        str(PurePosixPath(entry.get("mountPath", "/mnt/models")).parent)
        for entry in uris
        if not str(entry.get("uri")).startswith("pvc://")
    }
    if len(parents) > 1:
        yield error(path, f"what is not on a claim must share one parent folder; here: {', '.join(sorted(parents))}.")


def _multi_node(model: Json, annotations: Json) -> Iterator[Finding]:
    uri = str(model.get("storageUri", ""))
    if not uri.startswith(("pvc://", "oci://")):
        yield error("$.spec.predictor.model", "several nodes (workerSpec) need a storageUri of pvc:// or oci://.")
    if annotations.get("serving.kserve.io/autoscalerClass") != "none":
        yield error("$.metadata.annotations", "several nodes (workerSpec) need autoscalerClass: none.")


def _removed_flags(content: Json) -> Iterator[Finding]:
    """KServe's own examples still show vLLM's flags from before --speculative-config."""
    for pod in pod_specs(content):
        for path, container in containers(pod.spec):
            words = command_words(container)
            words += [str(v.get("value")) for v in container.get("env") or [] if v.get("name") == ADDITIONAL_ARGS]
            text = " ".join(words)
            image = str(container.get("image", ""))
            if words[:1] == ["paceline"] or not (
                "vllm" in f"{text} {image}".lower() or ADDITIONAL_ARGS in str(container.get("env"))
            ):
                continue
            for flag, instead in _removed(text, image):
                yield error(f"{pod.path}{path}", f"{flag} was removed from vLLM: {instead}.")


def _removed(text: str, image: str) -> Iterator[tuple[str, str]]:
    """By the runtime's own table, for the version in the image's tag."""
    from paceline.runtimes.vllm import facts_of, removed_option

    try:
        facts = facts_of(version_in_tag(image) or VLLM_VERSION)
    except ConfigurationError:  # of no version that the tables know
        facts = facts_of(VLLM_VERSION)
    for name, flag in _flags(text).items():
        instead = removed_option(name, facts)
        if instead is not None:
            yield flag, instead


def _flags(text: str) -> dict[str, str]:
    """name -> the option as it is written"""
    words = [word.strip("\"'").partition("=")[0] for word in text.split()]
    return {word[2:].replace("_", "-"): word for word in words if re.fullmatch(r"--[a-z][\w.-]*", word)}
