"""Secrets that stand in a manifest instead of their names, and names of Secrets that are not there.

What is found is never printed: a check's output ends in logs of a build (deploy/secrecy.py).
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from paceline.deploy.check.findings import Document, Finding, Json, error, warning
from paceline.deploy.check.pod_specs import command_words, containers, pod_specs
from paceline.deploy.check.walk import texts
from paceline.deploy.secrecy import SECRET_OPTIONS, is_reference, is_secret_name, token_in
from paceline.errors import did_you_mean

_INSTEAD = "put it into a Secret, name that in valueFrom.secretKeyRef, and make a new one: this one has been seen"
_IN_FILES = "keep it out of files, and make a new one: this one has been seen"


def secret_findings(content: Json) -> Iterator[Finding]:
    """Of an object as it stands in its file, and not masked."""
    if content.get("kind") == "Secret":
        yield from _of_secret(content)
        return
    told = set()
    for path, text in texts(content):
        what = token_in(text)
        if what is not None:
            told.add(path)
            yield error(path, f"holds {what}: {_INSTEAD}.")
    if content.get("kind") == "ConfigMap":
        yield from _of_config_map(content, told)
    for pod in pod_specs(content):
        for path, container in containers(pod.spec):
            yield from _by_name(f"{pod.path}{path}", container, told)


def generator_findings(kustomization: Json) -> Iterator[Finding]:
    """Literals of kustomize's generators."""
    for field in ("secretGenerator", "configMapGenerator"):
        generators = kustomization.get(field)
        for at, generator in enumerate(generators if isinstance(generators, list) else []):
            literals = generator.get("literals") if isinstance(generator, dict) else None
            for index, literal in enumerate(literals if isinstance(literals, list) else []):
                name, _, value = str(literal).partition("=")
                what = token_in(str(literal)) or (f"'{name}'" if is_secret_name(name) and value else None)
                if what is not None:
                    yield warning(f"$.{field}[{at}].literals[{index}]", f"holds {what}: {_IN_FILES}.")


def _of_secret(content: Json) -> Iterator[Finding]:
    for field in ("data", "stringData"):
        for name, value in (content.get(field) or {}).items():
            text = _decoded(value) if field == "data" else value
            if text is None:
                yield error(f"$.{field}.{name}", "is no base64: give it under stringData as it is, or encode it.")
            what = token_in(str(value)) or token_in(str(text))
            if what is not None:
                yield warning(f"$.{field}.{name}", f"holds {what}, and base64 hides nothing: {_IN_FILES}.")


def _decoded(value: Any) -> str | None:
    if not isinstance(value, str):
        return ""  # said by its schema
    try:
        return base64.b64decode("".join(value.split()), validate=True).decode(errors="replace")
    except ValueError:
        return None


def _of_config_map(content: Json, told: Collection[str]) -> Iterator[Finding]:
    for name, value in (content.get("data") or {}).items():
        path = f"$.data.{name}"
        if path not in told and is_secret_name(name) and value and not is_reference(str(value)):
            yield warning(path, f"'{name}' stands in a ConfigMap for all to read: {_INSTEAD}.")


def _by_name(place: str, container: Json, told: Collection[str]) -> Iterator[Finding]:
    for index, variable in enumerate(container.get("env") or []):
        where, value = f"{place}.env[{index}]", str(variable.get("value") or "")
        if not is_reference(value) and f"{where}.value" not in told and is_secret_name(variable.get("name")):
            yield warning(where, f"'{variable['name']}' stands here for all to read: {_INSTEAD}.")
    words = command_words(container)
    for index, word in enumerate(words):
        option, equals, value = word.partition("=")
        given = value if equals else (words[index + 1] if index + 1 < len(words) else "")
        if option in SECRET_OPTIONS and given and not given.startswith("$("):
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
