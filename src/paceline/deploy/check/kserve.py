"""What KServe refuses in its webhooks, and what it breaks without a word: quoting, templates, removed flags.

From KServe 0.20's behaviour, put in our own words; the CRDs' schemas and CEL rules do not hold these.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from paceline.deploy.check.findings import Finding, Json, error, warning
from paceline.deploy.check.pod_specs import command_words, containers, pod_specs
from paceline.deploy.served_names import TEMPLATE_NAMES, passes_template
from paceline.deploy.target import VLLM_VERSION, version_in_tag
from paceline.errors import ConfigurationError

_ADDITIONAL_ARGS = "VLLM_ADDITIONAL_ARGS"
_JSON_OPTIONS = ("--speculative-config", "--kv-transfer-config", "--compilation-config", "--hf-overrides")


def kserve_findings(content: Json) -> Iterator[Finding]:
    if content.get("kind") == "InferenceService":
        yield from _inference_service(content)
    if content.get("kind") == "LLMInferenceService":
        yield from _llm_inference_service(content)
    yield from _removed_flags(content)


def _inference_service(content: Json) -> Iterator[Finding]:
    annotations = (content.get("metadata") or {}).get("annotations") or {}
    mode = annotations.get("serving.kserve.io/deploymentMode")
    if mode == "RawDeployment":
        yield warning("$.metadata.annotations", "deploymentMode RawDeployment is deprecated: it is called Standard.")
    elif mode not in (None, "Standard", "Knative", "Serverless"):
        yield error("$.metadata.annotations", f"deploymentMode '{mode}' does not exist: Standard or Knative.")
    predictor = (content.get("spec") or {}).get("predictor") or {}
    model = predictor.get("model") or {}
    if "storageUris" in predictor and ("storageUri" in model or "storage" in model):
        yield error("$.spec.predictor", "storageUri and storageUris exclude each other.")
    yield from _storage_uris(predictor.get("storageUris") or [])
    if "workerSpec" in predictor:
        yield from _multi_node(model, annotations)


def _storage_uris(uris: list[Any]) -> Iterator[Finding]:
    path = "$.spec.predictor.storageUris"
    places = []
    for index, entry in enumerate(uris):
        if "path" in entry:
            yield error(f"{path}[{index}]", "the field is called mountPath, not path.")
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


def _llm_inference_service(content: Json) -> Iterator[Finding]:
    spec = content.get("spec") or {}
    for path, part in (("$.spec", spec), ("$.spec.prefill", spec.get("prefill") or {})):
        yield from _parallelism(f"{path}.parallelism", part.get("parallelism") or {})
    if "{{" in json.dumps(spec):
        yield error("$.spec", "holds '{{': KServe runs the whole spec through a Go template, which fails on it.")
    yield from _served_name(content, spec)
    for pod in pod_specs(content):
        part = spec.get("prefill") or {} if pod.path.startswith("$.spec.prefill") else spec
        for path, container in containers(pod.spec):
            if container.get("name") == "main":
                yield from _template_arguments(f"{pod.path}{path}", container)
                if "command" not in container:
                    yield from _ranks(f"{pod.path}{path}", container, part.get("parallelism") or {})


def _served_name(content: Json, spec: Json) -> Iterator[Finding]:
    """The template's command holds it; a container with a command of its own replaces that."""
    name = (spec.get("model") or {}).get("name")
    mains = [
        container
        for pod in pod_specs(content)
        for _, container in containers(pod.spec)
        if container.get("name") == "main"
    ]
    by_template = not mains or any("command" not in container for container in mains)
    if by_template and name is not None and not passes_template(str(name)):
        yield error("$.spec.model.name", f"{name!r}: {TEMPLATE_NAMES}.")


def _parallelism(path: str, parallelism: Json) -> Iterator[Finding]:
    if ("data" in parallelism) != ("dataLocal" in parallelism):
        yield error(path, "data and dataLocal come together.")
    if "pipeline" in parallelism and "data" in parallelism:
        yield error(path, "pipeline and data exclude each other.")
    for name in ("data", "dataLocal", "pipeline", "tensor"):
        size = parallelism.get(name, 1)
        if isinstance(size, int) and size < 1:
            yield error(f"{path}.{name}", f"{size} must be at least 1.")


def _ranks(path: str, container: Json, parallelism: Json) -> Iterator[Finding]:
    """The template starts vLLM with `parallelism`; GPUs and the draft have to follow it."""
    tensor = parallelism.get("tensor", 1)
    each = tensor * parallelism.get("dataLocal", 1)
    limits = (container.get("resources") or {}).get("limits") or {}
    for name, count in limits.items():
        if name.endswith("/gpu") and str(count) != str(each):
            yield error(f"{path}.resources", f"{name} is {count}, and parallelism makes vLLM use {each} in this pod.")
    for variable in container.get("env") or []:
        if variable.get("name") == _ADDITIONAL_ARGS:
            try:
                words = shlex.split(str(variable.get("value", "")))
            except ValueError:
                continue  # said by _additional_args
            for option, argument in _options(words):
                draft = json.loads(argument) if option == "--speculative-config" and _is_json(argument) else {}
                size = draft.get("draft_tensor_parallel_size", tensor)
                if size != tensor:
                    yield error(
                        f"{path}.env",
                        f"draft_tensor_parallel_size is {size} and parallelism.tensor {tensor}: vLLM runs a draft at "
                        "the target's degree only.",
                    )


def _template_arguments(path: str, container: Json) -> Iterator[Finding]:
    """KServe's template ends in `eval "exec vllm serve … ${VLLM_ADDITIONAL_ARGS} $@"`: a shell reads it all again."""
    if "command" in container:
        return  # the template's command is replaced, and with it the shell
    for word in container.get("args") or []:
        if "{" in str(word) or "'" in str(word) or '"' in str(word):
            yield error(
                f"{path}.args",
                f"the template's shell takes the quotes off {str(word)[:60]!r}: put it, in single quotes, into the "
                f"value of {_ADDITIONAL_ARGS}.",
            )
    for variable in container.get("env") or []:
        if variable.get("name") == _ADDITIONAL_ARGS:
            yield from _additional_args(f"{path}.env", str(variable.get("value", "")))


def _additional_args(path: str, value: str) -> Iterator[Finding]:
    try:
        words = shlex.split(value)
    except ValueError as fault:
        yield error(path, f"{_ADDITIONAL_ARGS} cannot be read by a shell: {fault}.")
        return
    for option, argument in _options(words):
        if option in _JSON_OPTIONS and not _is_json(argument):
            yield error(
                path, f"after the template's shell, {option} is {argument[:60]!r}, no JSON: put it in single quotes."
            )


def _options(words: list[str]) -> Iterator[tuple[str, str]]:
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        yield (name, value) if equals else (name, words[index + 1] if index + 1 < len(words) else "")


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _removed_flags(content: Json) -> Iterator[Finding]:
    """KServe's own examples still show vLLM's flags from before --speculative-config."""
    for pod in pod_specs(content):
        for path, container in containers(pod.spec):
            words = command_words(container)
            words += [str(v.get("value")) for v in container.get("env") or [] if v.get("name") == _ADDITIONAL_ARGS]
            text = " ".join(words)
            image = str(container.get("image", ""))
            if words[:1] == ["paceline"] or not (
                "vllm" in f"{text} {image}".lower() or _ADDITIONAL_ARGS in str(container.get("env"))
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
    flags = [word.strip("\"'").partition("=")[0] for word in text.split()]
    for flag in dict.fromkeys(word for word in flags if word.startswith("--")):
        instead = removed_option(flag[2:].replace("_", "-"), facts)
        if instead is not None:
            yield flag, instead
