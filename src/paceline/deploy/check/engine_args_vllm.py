"""Arguments of vLLM in a container, for the version in its image's tag; KServe's LLM template writes some itself."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from paceline.deploy.check.findings import Finding, Json, error, warning
from paceline.deploy.check.pod_specs import command_words
from paceline.deploy.check.server_commands import JSON_OPTIONS
from paceline.deploy.check.shell_words import as_kubernetes_passes
from paceline.deploy.target import PORT, version_in_tag
from paceline.errors import ConfigurationError

ADDITIONAL_ARGS = "VLLM_ADDITIONAL_ARGS"
_SHELLS = ("sh", "bash", "dash", "ash")
_MODULES = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.cli.main")
_SECRET = ("--api-key", "--hf-token")
_SERVES = "the template writes it, and KServe's probes, Service and route go by that"
# Options of KServe's template, or against it.
_BY_TEMPLATE = {
    "port": _SERVES, "uds": _SERVES, "grpc": _SERVES, "ssl-certfile": _SERVES, "ssl-keyfile": _SERVES,
    "model": "the template gives the folder of spec.model.uri",
}  # fmt: skip


def vllm_findings(place: str, container: Json) -> Iterator[Finding]:
    words = _words(container)
    if words is not None:
        yield from _judged(place, f"{place}.args", container, words, _names(container))


def template_findings(place: str, container: Json, part: Json, spec: Json) -> Iterator[Finding]:
    """`part` has the parallelism of these pods: `spec`, or its prefill."""
    words, where = _additional(place, container)
    if not words:
        return
    for option, value in _options(words):
        if option in _BY_TEMPLATE and not (option == "port" and value == str(PORT)):
            yield error(where, f"--{option} here: {_BY_TEMPLATE[option]}. Leave it out.")
        elif option == "served-model-name":
            yield warning(where, f"--{option} here: the template writes spec.model.name, by which routes go.")
    tensor = (part.get("parallelism") or {}).get("tensor", 1)
    pipeline = (part.get("parallelism") or {}).get("pipeline", 1)
    given = {option for option, _ in _options(words)}
    folder = "/mnt/models"
    words = [folder, *words]
    for option, size in (("tensor-parallel-size", tensor), ("pipeline-parallel-size", pipeline)):
        if option not in given and size != 1:
            words += [f"--{option}", str(size)]
    model = spec.get("model") or {}
    names = {**_names(container), folder: str(model.get("uri") or "").rstrip("/")}
    for finding in _judged(place, where, container, words, names):
        if not finding.message.startswith("draft_tensor_parallel_size="):  # told with the field's own name
            yield finding


def _judged(place: str, where: str, container: Json, words: list[str], names: dict[str, str]) -> Iterator[Finding]:
    from paceline.runtimes.vllm import FIRST, LAST, facts_of, facts_of_any, faults_of

    image = str(container.get("image") or "")
    version = version_in_tag(image) if "vllm" in image.partition("@")[0].rsplit("/", 1)[-1] else None
    facts = None
    if version is not None:
        try:
            facts = facts_of(version)
        except ConfigurationError:
            if version.startswith("0.") and int(version.split(".")[1]) < FIRST:
                yield warning(
                    f"{place}.image",
                    f"vLLM {version}: its arguments are not known here, and runtime vllm is for 0.{FIRST} to 0.{LAST}.",
                )
                return
    faults = faults_of(_without_secrets(words), facts or facts_of_any(), names)
    for message in faults.fatal:
        if _is_told(message) or (facts is None and _may_be_newer(message)):
            continue
        yield error(where, message) if facts is not None else warning(where, message)
    yield from (warning(where, message) for message in faults.loose)


def _is_told(message: str) -> bool:
    """By server_commands.py and llm_template.py."""
    return any(message.startswith(f"{option} must be") and "JSON" in message for option in JSON_OPTIONS)


def _may_be_newer(message: str) -> bool:
    """What an unknown version might have; a name that is nearly another one is a mistake in each."""
    return ("has no " in message or "must be one of" in message) and not message.endswith("?")


def _words(container: Json) -> list[str] | None:
    """What follows `vllm serve`, as Kubernetes passes it on; None where that is not what the container runs."""
    words = [as_kubernetes_passes(word, _variables(container)) for word in command_words(container)]
    command = container.get("command") or []
    program = words[0].rsplit("/", 1)[-1] if words else ""
    if program in _SHELLS and len(words) > 2 and words[1].startswith("-") and words[1].endswith("c"):
        return _of_shell(words[2])
    if program == "vllm":
        return words[2:] if words[1:2] == ["serve"] else None
    module = next((index for index, word in enumerate(words) if word in _MODULES), None)
    if module is not None and program.startswith("python") and words[module - 1] == "-m":
        rest = words[module + 1 :]
        return rest[1:] if rest[:1] == ["serve"] else rest if words[module].endswith("api_server") else None
    image = str(container.get("image") or "").rsplit("/", 1)[-1]
    if not command and image.startswith("vllm-openai") and words:  # its entrypoint is `vllm serve`
        return words
    return None


def _of_shell(line: str) -> list[str] | None:
    """The words after `vllm serve` in one line of a shell, up to its end; what a shell would put in stays open."""
    found = re.search(r"(?:^|[\s;&|])vllm\s+serve\s", line.replace("\\\n", " "))
    if found is None:
        return None
    rest = line.replace("\\\n", " ")[found.end() :].split("\n")[0]
    try:
        lexer = shlex.shlex(rest, posix=True, punctuation_chars=True)
        lexer.commenters = ""
        words = list(lexer)
    except ValueError:
        return None
    end = next((index for index, word in enumerate(words) if set(word) <= set(";&|<>()")), len(words))
    if any("$" in word or "`" in word for word in words[:end]):
        return None
    return words[:end]


def _additional(place: str, container: Json) -> tuple[list[str], str]:
    """What KServe's template puts behind its own options, and where it stands."""
    variables = _variables(container)
    text = variables.get(ADDITIONAL_ARGS)
    args = " ".join(map(str, container.get("args") or []))
    both = [as_kubernetes_passes(part, variables) for part in (text, args) if part]
    if not both or any("$" in part.replace("$(", "") or "`" in part for part in both):
        return [], place  # a shell would put something in
    try:
        return [word for part in both for word in shlex.split(part)], f"{place}.{'env' if text else 'args'}"
    except ValueError:
        return [], place  # told by llm_template.py


def _variables(container: Json) -> dict[str, str]:
    """Those whose values stand here."""
    return {
        str(variable.get("name")): str(variable["value"])
        for variable in container.get("env") or []
        if variable.get("value") is not None
    }


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    from paceline.runtimes.vllm import SHORT_OPTIONS

    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if word.startswith("--") or name in SHORT_OPTIONS:
            follows = words[index + 1] if index + 1 < len(words) else ""
            yield SHORT_OPTIONS.get(name, name[2:].replace("_", "-")), value if equals else follows


def _names(container: Json) -> dict[str, str]:
    """Folders of a claim say which model is at a path."""
    return {
        str(mount.get("mountPath")): str(mount["subPath"])
        for mount in container.get("volumeMounts") or []
        if mount.get("subPath")
    }


def _without_secrets(words: Sequence[str]) -> list[str]:
    """The values of options that hold one, as if Kubernetes put them in."""
    kept: list[str] = []
    for word in words:
        name, equals, _ = word.partition("=")
        if kept and kept[-1] in _SECRET and not word.startswith("--"):
            kept.append("$(SECRET)")
        else:
            kept.append(f"{name}=$(SECRET)" if equals and name in _SECRET else word)
    return kept
