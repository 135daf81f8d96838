"""LLMInferenceService: its webhook's rules, and what its Go template and its shell do to what stands in it.

KServe's template ends in `eval "exec vllm serve … ${VLLM_ADDITIONAL_ARGS} $@"`: a shell reads it all again.
From KServe 0.20's behaviour, put in our own words; the CRDs' schemas and CEL rules do not hold these.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator

from paceline.deploy.check.findings import Finding, Json, error, warning
from paceline.deploy.check.pod_specs import containers, pod_specs
from paceline.deploy.check.server_commands import JSON_OPTIONS, is_json
from paceline.deploy.check.shell_words import acts_in_shell, as_kubernetes_passes
from paceline.deploy.gpus import SHORT_OPTIONS
from paceline.deploy.served_names import TEMPLATE_NAMES, passes_template

ADDITIONAL_ARGS = "VLLM_ADDITIONAL_ARGS"
# An option of vLLM -> the field of `parallelism` from which the template writes it.
_BY_TEMPLATE = {
    "tensor-parallel-size": "tensor", "pipeline-parallel-size": "pipeline", "data-parallel-size": "data",
    "data-parallel-size-local": "dataLocal",
}  # fmt: skip


def llm_findings(content: Json) -> Iterator[Finding]:
    spec = content.get("spec") or {}
    for path, part in (("$.spec", spec), ("$.spec.prefill", spec.get("prefill") or {})):
        yield from _parallelism(f"{path}.parallelism", part.get("parallelism") or {})
    if "{{" in json.dumps(spec):
        yield error("$.spec", "holds '{{': KServe runs the whole spec through a Go template, which fails on it.")
    yield from _served_name(content, spec)
    yield from _model(spec)
    names = [c.get("name") for p, c in containers(spec.get("template") or {}) if p.startswith(".containers")]
    if names and "main" not in names:
        yield warning(
            "$.spec.template.containers",
            f"none is called 'main', as the template's is: {', '.join(map(str, names))} would run beside it.",
        )
    for pod in pod_specs(content):
        part = spec.get("prefill") or {} if pod.path.startswith("$.spec.prefill") else spec
        for path, container in containers(pod.spec):
            # A command of its own replaces the template's, and with it the shell.
            if container.get("name") == "main" and "command" not in container:
                yield from _template_arguments(f"{pod.path}{path}", container)
                yield from _ranks(f"{pod.path}{path}", container, part.get("parallelism") or {})


def _model(spec: Json) -> Iterator[Finding]:
    uri = (spec.get("model") or {}).get("uri")
    if uri is not None and "://" not in str(uri):
        yield error("$.spec.model.uri", f"{uri!r} does not say where: hf://, pvc://, s3:// or oci:// comes first.")


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
    """The template starts vLLM with `parallelism`; GPUs, the draft and options given beside it have to follow it."""
    tensor = parallelism.get("tensor", 1)
    each = tensor * parallelism.get("dataLocal", 1)
    limits = (container.get("resources") or {}).get("limits") or {}
    for name, count in limits.items():
        if name.endswith("/gpu") and str(count) != str(each):
            yield error(f"{path}.resources", f"{name} is {count}, and parallelism makes vLLM use {each} in this pod.")
    for place, text in _shell_texts(path, container):
        for option, argument in _options(_words(text)):
            yield from _size(place, option, argument, parallelism)
            draft = json.loads(argument) if option == "--speculative-config" and is_json(argument) else {}
            size = draft.get("draft_tensor_parallel_size", tensor)
            if size != tensor:
                yield error(
                    place,
                    f"draft_tensor_parallel_size is {size} and parallelism.tensor {tensor}: vLLM runs a draft at "
                    "the target's degree only.",
                )


def _size(place: str, option: str, argument: str, parallelism: Json) -> Iterator[Finding]:
    name = SHORT_OPTIONS.get(option, option.removeprefix("--").replace("_", "-"))
    field = _BY_TEMPLATE.get(name)
    if field is not None and argument != str(parallelism.get(field, 1)):
        yield error(
            place,
            f"{option} {argument} contradicts parallelism.{field}, {parallelism.get(field, 1)}, from which the "
            "template writes it: change that, and leave the option out.",
        )


def _template_arguments(path: str, container: Json) -> Iterator[Finding]:
    for word in map(str, container.get("args") or []):
        if "{" in word or "'" in word or '"' in word:
            yield error(
                f"{path}.args",
                f"the template's shell takes the quotes off {word[:60]!r}: put it, in single quotes, into the "
                f"value of {ADDITIONAL_ARGS}.",
            )
    for place, text in _shell_texts(path, container):
        yield from _read_by_shell(place, text)


def _shell_texts(path: str, container: Json) -> Iterator[tuple[str, str]]:
    """(path, text) that the template's shell reads, as Kubernetes passes it on."""
    env = container.get("env") or []
    variables = {str(variable.get("name")): str(variable.get("value") or "x") for variable in env}
    for variable in env:
        if variable.get("name") == ADDITIONAL_ARGS:
            text = as_kubernetes_passes(str(variable.get("value") or ""), variables)
            yield f"{path}.env", text.rstrip("\n")
    if container.get("args"):
        words = " ".join(map(str, container["args"]))
        yield f"{path}.args", as_kubernetes_passes(words, variables).rstrip("\n")


def _read_by_shell(place: str, text: str) -> Iterator[Finding]:
    act = acts_in_shell(text)
    if act is not None:
        yield error(place, f"is read by the template's shell, where {act}: put single quotes around the word.")
    try:
        words = shlex.split(text)
    except ValueError as fault:
        yield error(place, f"{ADDITIONAL_ARGS} cannot be read by a shell: {fault}.")
        return
    for option, argument in _options(words):
        if option in JSON_OPTIONS and not is_json(argument):
            yield error(
                place, f"after the template's shell, {option} is {argument[:60]!r}, no JSON: put it in single quotes."
            )


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return []  # said by _read_by_shell


def _options(words: list[str]) -> Iterator[tuple[str, str]]:
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        yield (name, value) if equals else (name, words[index + 1] if index + 1 < len(words) else "")
