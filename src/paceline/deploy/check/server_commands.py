"""What a container's command says, against the rest of its container: the port, the model's folder, JSON, options."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from paceline.deploy.check.findings import Finding, Json, error, warning
from paceline.deploy.check.pod_specs import PodSpec, command_words, containers
from paceline.errors import did_you_mean

JSON_OPTIONS = ("--speculative-config", "--kv-transfer-config", "--compilation-config", "--hf-overrides")
_PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
# GET, without a key
_ANSWERED = {
    "paceline": ("/health", "/health/ready", "/health/live", "/metrics", "/v1/models", "/"),
    "vllm": ("/health", "/ping", "/version", "/load", "/metrics", "/v1/models"),
}
_DEFAULT_PORT = 8000  # of both servers


def command_findings(pod: PodSpec) -> Iterator[Finding]:
    for path, container in containers(pod.spec):
        words = command_words(container)
        if words[:2] not in (["paceline", "serve"], ["vllm", "serve"]):  # a shell's line says less
            continue
        place = f"{pod.path}{path}"
        yield from _port(place, container, words)
        yield from _host(place, words)
        yield from _probe_paths(place, container, words[0])
        yield from _json(place, words)
        if pod.is_whole:
            yield from _model(place, container, words)


def _port(place: str, container: Json, words: list[str]) -> Iterator[Finding]:
    given = _value(words, "--port") or str(_DEFAULT_PORT)
    if not given.isdecimal():
        return
    ports = container.get("ports") or []
    names = {port.get("name"): port.get("containerPort") for port in ports}
    for probe in _PROBES:
        asked = ((container.get(probe) or {}).get("httpGet") or {}).get("port")
        number = names.get(asked, asked)
        if isinstance(number, int) and number != int(given):
            yield error(f"{place}.{probe}.httpGet.port", f"asks port {number}, and the server listens on {given}.")
    if ports and int(given) not in names.values() and int(given) not in [p.get("containerPort") for p in ports]:
        yield warning(f"{place}.ports", f"none is {given}, on which the server listens.")


def _host(place: str, words: list[str]) -> Iterator[Finding]:
    host = _value(words, "--host") or ""
    if host.startswith("127.") or host in ("localhost", "::1"):
        yield error(
            f"{place}.args",
            f"the server listens on {host} alone, and probes and Services ask the pod's own address: give 0.0.0.0.",
        )


def _probe_paths(place: str, container: Json, server: str) -> Iterator[Finding]:
    for probe in _PROBES:
        asked = (container.get(probe) or {}).get("httpGet") or {}
        path = str(asked.get("path", "/")).partition("?")[0]
        if asked and path not in _ANSWERED[server] and "--root-path" not in command_words(container):
            yield error(
                f"{place}.{probe}.httpGet.path",
                f"the server has no {path}, so that the answer is always 404.{did_you_mean(path, _ANSWERED[server])} "
                f"There are: {', '.join(_ANSWERED[server])}.",
            )


def _json(place: str, words: list[str]) -> Iterator[Finding]:
    for option in JSON_OPTIONS:
        text = _value(words, option)
        if text is not None and "$(" not in text and not is_json(text):
            yield error(f"{place}.args", f"{option} is {text[:60]!r}, no JSON object.")


def _model(place: str, container: Json, words: list[str]) -> Iterator[Finding]:
    model = words[2] if len(words) > 2 else ""
    if not model.startswith("/"):
        return
    mounts = [PurePosixPath(str(mount.get("mountPath"))) for mount in container.get("volumeMounts") or []]
    path = PurePosixPath(model)
    if mounts and not any(mount == path or mount in path.parents for mount in mounts):
        there = ", ".join(map(str, mounts))
        yield warning(f"{place}.args", f"the model {model} is on none of the mounts: {there}.")


def _value(words: list[str], option: str) -> str | None:
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == option:
            return value if equals else (words[index + 1] if index + 1 < len(words) else "")
    return None


def is_json(text: str) -> bool:
    try:
        found: Any = json.loads(text)
    except ValueError:
        return False
    return isinstance(found, dict)
