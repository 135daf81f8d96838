"""Where a server looks for its models, against what is mounted there and what the download Job puts on the claim."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any

from paceline.deploy.check.findings import Document, Finding, Json, error, warning
from paceline.deploy.check.llm_template import ADDITIONAL_ARGS
from paceline.deploy.check.pod_specs import command_words, containers, pod_specs
from paceline.errors import did_you_mean

_TEMPLATE_MODEL = "/mnt/models"  # where KServe puts a model without being told
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_YES = ("1", "true", "yes", "on")
Downloads = dict[str, set[str]]  # claim -> folders on it


def place_findings(document: Document, documents: Sequence[Document]) -> Iterator[Finding]:
    content = document.content
    yield from _offline(content)
    match document.kind:
        case "InferenceService":
            yield from _of_service(content, documents)
        case "LLMInferenceService":
            yield from _of_llm(content)
        case "ServingRuntime" | "ClusterServingRuntime":
            pass  # what is mounted there stands in the InferenceService
        case _:
            yield from _of_pods(content)
    downloads = _downloads(_namespace(content), documents)
    if downloads and document.kind != "Job":
        yield from _not_downloaded(content, downloads)


def asked_models(container: Json) -> Iterator[tuple[str, str]]:
    """(which, path or name) of the models that a server's command names."""
    words = command_words(container)
    if words[:2] in (["paceline", "serve"], ["vllm", "serve"]) and len(words) > 2 and not words[2].startswith("-"):
        yield "model", words[2]
    words += [
        word
        for variable in container.get("env") or []
        if variable.get("name") == ADDITIONAL_ARGS
        for word in re.split(r"[ =]'?|' ", str(variable.get("value") or ""))
    ]
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        given = value if equals else (words[index + 1] if index + 1 < len(words) else "")
        if name == "--speculative-model":
            yield "draft", given
        if name == "--speculative-config":
            try:
                config: Any = json.loads(given)
            except ValueError:  # said elsewhere
                continue
            if isinstance(config, dict) and isinstance(config.get("model"), str):
                yield "draft", config["model"]


def _of_pods(content: Json) -> Iterator[Finding]:
    for pod in pod_specs(content):
        for path, container in containers(pod.spec):
            mounts = [str(mount.get("mountPath")) for mount in container.get("volumeMounts") or []]
            for which, model in asked_models(container):
                if which == "draft" and mounts:  # the target: server_commands.py
                    yield from _on_none(f"{pod.path}{path}", which, model, mounts)


def _of_service(content: Json, documents: Sequence[Document]) -> Iterator[Finding]:
    predictor = (content.get("spec") or {}).get("predictor") or {}
    name = (predictor.get("model") or {}).get("runtime")
    places = [str(entry.get("mountPath", _TEMPLATE_MODEL)) for entry in predictor.get("storageUris") or []]
    if not places:
        return
    for other in documents:
        runtime = other.content
        if other.kind not in ("ServingRuntime", "ClusterServingRuntime") or _name(runtime) != name:
            continue
        for _, container in containers(runtime.get("spec") or {}):
            mounts = [str(mount.get("mountPath")) for mount in container.get("volumeMounts") or []]
            for which, model in asked_models(container):
                yield from _on_none("$.spec.predictor.storageUris", which, model, [*places, *mounts])


def _of_llm(content: Json) -> Iterator[Finding]:
    for pod in pod_specs(content):
        for path, container in containers(pod.spec):
            mounts = [str(mount.get("mountPath")) for mount in container.get("volumeMounts") or []]
            for which, model in asked_models(container):
                yield from _on_none(f"{pod.path}{path}", which, model, [_TEMPLATE_MODEL, *mounts])


def _on_none(place: str, which: str, model: str, mounts: Sequence[str]) -> Iterator[Finding]:
    path = PurePosixPath(model)
    if model.startswith("/") and not any(PurePosixPath(m) in (path, *path.parents) for m in mounts):
        there = ", ".join(dict.fromkeys(mounts))
        yield error(place, f"the {which} {model} is on none of the mounts: {there}.")


def _offline(content: Json) -> Iterator[Finding]:
    for pod in pod_specs(content):
        for path, container in containers(pod.spec):
            off = [
                variable.get("name")
                for variable in container.get("env") or []
                if variable.get("name") in _OFFLINE and str(variable.get("value")).lower() in _YES
            ]
            for which, model in asked_models(container) if off else ():
                if re.fullmatch(r"[\w][\w.-]*/[\w.-]+", model):
                    yield error(
                        f"{pod.path}{path}.env",
                        f"{off[0]} is on, and the {which} {model} would have to be fetched: give its folder.",
                    )


def _downloads(namespace: Any, documents: Sequence[Document]) -> Downloads:
    """By the Jobs that run `paceline models pull NAME --to FOLDER`."""
    found: Downloads = {}
    for document in documents:
        if document.kind != "Job" or _namespace(document.content) != namespace:
            continue
        for pod in pod_specs(document.content):
            for _, container in containers(pod.spec):
                words = command_words(container)
                if words[:3] != ["paceline", "models", "pull"] or "--to" not in words[:-1]:
                    continue
                placed = _on_claim(pod.spec, container, words[words.index("--to") + 1])
                if placed is not None:
                    found.setdefault(placed[0], set()).add(placed[1])
    return found


def _on_claim(spec: Json, container: Json, path: str) -> tuple[str, str] | None:
    """(claim, folder on it) of a path inside of a container."""
    for mount in container.get("volumeMounts") or []:
        within, place = str(mount.get("mountPath")), PurePosixPath(path)
        if PurePosixPath(within) not in (place, *place.parents):
            continue
        claim = _claim_of(spec, mount.get("name"))
        folder = PurePosixPath(str(mount.get("subPath") or ".")) / place.relative_to(within)
        if claim is not None:
            return claim, str(folder)
    return None


def _claim_of(spec: Json, volume: Any) -> str | None:
    for each in spec.get("volumes") or []:
        if each.get("name") == volume:
            name = (each.get("persistentVolumeClaim") or {}).get("claimName")
            return None if name is None else str(name)
    return None


def _not_downloaded(content: Json, downloads: Downloads) -> Iterator[Finding]:
    for place, claim, folder in _read(content):
        there = downloads.get(claim)
        if there is None or folder == "." or any(folder == each or folder.startswith(f"{each}/") for each in there):
            continue
        guess = did_you_mean(folder, there) or f" It downloads {', '.join(sorted(there))}."
        yield warning(place, f"the download Job puts no '{folder}' on the claim '{claim}'.{guess}")


def _read(content: Json) -> Iterator[tuple[str, str, str]]:
    """(path, claim, folder) that are read."""
    for pod in pod_specs(content):
        for path, container in containers(pod.spec):
            for index, mount in enumerate(container.get("volumeMounts") or []):
                claim = _claim_of(pod.spec, mount.get("name"))
                if claim is not None and mount.get("subPath"):
                    yield f"{pod.path}{path}.volumeMounts[{index}]", claim, str(mount["subPath"])
            words = command_words(container)
            if words[:3] == ["paceline", "deploy", "doctor"]:
                for option, model in itertools.pairwise(words):
                    placed = _on_claim(pod.spec, container, model) if option == "--model" else None
                    if placed is not None:
                        yield f"{pod.path}{path}", *placed
    spec = content.get("spec") or {}
    uris = [("$.spec.model.uri", (spec.get("model") or {}).get("uri"))]
    for index, entry in enumerate((spec.get("predictor") or {}).get("storageUris") or []):
        uris.append((f"$.spec.predictor.storageUris[{index}].uri", entry.get("uri")))
    for place, uri in uris:
        found = re.fullmatch(r"pvc://([^/]+)/(.+?)/*", str(uri))
        if found is not None:
            yield place, found[1], found[2]


def _name(content: Json) -> str:
    return str((content.get("metadata") or {}).get("name"))


def _namespace(content: Json) -> Any:
    return (content.get("metadata") or {}).get("namespace")
