"""Secrets that stand in a manifest instead of their names, and names of Secrets that are not there.

What is found is never printed: a check's output ends in logs of a build.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from paceline.deploy.check.findings import Document, Finding, Json, error, warning
from paceline.deploy.check.pod_specs import command_words, containers, pod_specs
from paceline.deploy.check.walk import texts
from paceline.errors import did_you_mean

_TOKENS = {
    "a token of Hugging Face": re.compile(r"(?<![A-Za-z0-9_])hf_[A-Za-z0-9]{16,}"),
    "a token of GitHub": re.compile(r"(?<![A-Za-z0-9_])(gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,})"),
    "a key of OpenAI's form": re.compile(r"(?<![A-Za-z0-9_-])sk-[A-Za-z0-9_-]{20,}"),
    "a key of AWS": re.compile(r"(?<![A-Za-z0-9])(AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])"),
    "a key of NGC": re.compile(r"(?<![A-Za-z0-9_])nvapi-[A-Za-z0-9_-]{20,}"),
    "a private key": re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
}
_SECRET_NAMES = re.compile(r"(?i)(^|_)(token|password|passwd|secret|secret_access_key|api_?keys?)$")
_SECRET_OPTIONS = ("--api-key", "--hf-token")
_INSTEAD = "put it into a Secret, name that in valueFrom.secretKeyRef, and make a new one: this one has been seen"


def token_in(text: str) -> str | None:
    return next((what for what, pattern in _TOKENS.items() if pattern.search(text)), None)


def secret_findings(content: Json) -> Iterator[Finding]:
    if content.get("kind") == "Secret":
        return
    told = set()
    for path, text in texts(content):
        what = token_in(text)
        if what is not None:
            told.add(path)
            yield error(path, f"holds {what}: {_INSTEAD}.")
    for pod in pod_specs(content):
        for path, container in containers(pod.spec):
            yield from _by_name(f"{pod.path}{path}", container, told)


def _by_name(place: str, container: Json, told: set[str]) -> Iterator[Finding]:
    for index, variable in enumerate(container.get("env") or []):
        where, value = f"{place}.env[{index}]", variable.get("value")
        is_reference = re.fullmatch(r"(\$\([^)]*\))*", str(value or "")) is not None
        if not is_reference and f"{where}.value" not in told and _SECRET_NAMES.search(str(variable.get("name"))):
            yield warning(where, f"'{variable['name']}' stands here for all to read: {_INSTEAD}.")
    words = command_words(container)
    for index, word in enumerate(words):
        option, equals, value = word.partition("=")
        given = value if equals else (words[index + 1] if index + 1 < len(words) else "")
        if option in _SECRET_OPTIONS and given and not given.startswith("$("):
            yield warning(place, f"{option} stands here for all to read: {_INSTEAD}.")


def reference_findings(content: Json, documents: Sequence[Document]) -> Iterator[Finding]:
    """A key that a Secret (or ConfigMap) among these files does not have, and names that are nearly one of theirs."""
    for kind, field in (("Secret", "secretKeyRef"), ("ConfigMap", "configMapKeyRef")):
        there = {_name(other.content): _keys(other.content) for other in documents if other.kind == kind}
        for path, reference in _references(content, field):
            name, key = str(reference.get("name")), reference.get("key")
            if reference.get("optional"):
                continue
            if name in there and key not in there[name]:
                yield error(path, f"the {kind} '{name}' has no key '{key}'.{did_you_mean(str(key), there[name])}")
            elif name not in there and (guess := did_you_mean(name, there)):
                yield warning(path, f"no {kind} '{name}' is among these files.{guess}")


def missing_secrets(documents: Sequence[Document]) -> list[str]:
    """'name (key, key)' of Secrets that pods need and these files do not hold."""
    there = {_name(document.content) for document in documents if document.kind == "Secret"}
    wanted: dict[str, set[str]] = {}
    for document in documents:
        for _, reference in _references(document.content, "secretKeyRef"):
            if reference.get("name") not in there and not reference.get("optional"):
                wanted.setdefault(str(reference.get("name")), set()).add(str(reference.get("key")))
    return [f"{name} ({', '.join(sorted(keys))})" for name, keys in sorted(wanted.items())]


def _references(content: Json, field: str) -> Iterator[tuple[str, Json]]:
    for pod in pod_specs(content):
        for path, container in containers(pod.spec):
            for index, variable in enumerate(container.get("env") or []):
                source = variable.get("valueFrom") if isinstance(variable, dict) else None
                reference = source.get(field) if isinstance(source, dict) else None
                if isinstance(reference, dict):
                    yield f"{pod.path}{path}.env[{index}]", reference


def _keys(content: Json) -> list[str]:
    parts: Any = (content.get(name) or {} for name in ("data", "stringData", "binaryData"))
    return [str(key) for part in parts for key in part]


def _name(content: Json) -> str:
    return str((content.get("metadata") or {}).get("name"))
