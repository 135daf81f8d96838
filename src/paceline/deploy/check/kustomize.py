"""Folders with a kustomization: what it names is there, and an overlay is checked as what it makes.

An overlay's own files are patches and not objects, so it is built first, by kubectl or kustomize, offline.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from paceline.deploy.check.findings import Finding, error, warning
from paceline.deploy.check.secrets import generator_findings
from paceline.deploy.secrecy import redacted
from paceline.errors import ConfigurationError

NAMES = ("kustomization.yaml", "kustomization.yml", "Kustomization")
_GROUP = "kustomize.config.k8s.io/"
_PLAIN = {
    "apiVersion",
    "kind",
    "metadata",
    "resources",
}  # anything else changes the objects

SUFFIXES = (".yaml", ".yml", ".json")


def kustomization_of(folder: Path) -> Path | None:
    return next((folder / name for name in NAMES if (folder / name).is_file()), None)


def is_kustomization(content: Any) -> bool:
    return isinstance(content, dict) and str(content.get("apiVersion", "")).startswith(_GROUP)


def with_kind(contents: Sequence[Any]) -> list[dict[str, Any]]:
    """kustomize does without apiVersion and kind in a file of its own name."""
    kind = {"apiVersion": f"{_GROUP}v1beta1", "kind": "Kustomization"}
    return [content for each in contents if isinstance(each, dict) and is_kustomization(content := {**kind, **each})]


def kustomization_findings(file: Path, content: dict[str, Any]) -> Iterator[Finding]:
    folder = file.parent
    for field, name in _missing(folder, content):
        yield error(f"$.{field}", f"'{name}' is not there.")
    yield from generator_findings(content)
    if is_overlay(folder, content):
        return
    named = {(folder / str(name)).resolve() for name in _list(content.get("resources"))} | {file.resolve()}
    for other in sorted(folder.iterdir()):
        if other.suffix in SUFFIXES and other.is_file() and other.resolve() not in named:
            yield warning("$.resources", f"'{other.name}' is not named: kubectl apply -k leaves it out.")


def is_overlay(folder: Path, content: dict[str, Any]) -> bool:
    """Whether objects come from elsewhere, or are changed on the way."""
    named = [str(name) for name in _list(content.get("resources"))]
    plain = isinstance(content.get("resources", []), list) and not content.keys() - _PLAIN
    return not plain or any(not (folder / name).is_file() for name in named if not _is_remote(name))


def _missing(folder: Path, content: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for field, name in _named(content):
        path = folder / name
        if not path.exists():
            yield field, name
        elif path.is_dir() and field == "resources" and kustomization_of(path) is None:
            yield field, f"{name}/kustomization.yaml"


def _named(content: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for field in ("resources", "bases", "components", "patchesStrategicMerge", "configurations", "crds"):
        for name in _list(content.get(field)):
            if isinstance(name, str) and not _is_remote(name) and "\n" not in name:
                yield field, name
    for field in ("patches", "patchesJson6902", "replacements"):
        for entry in _list(content.get(field)):
            if isinstance(entry, dict) and isinstance(entry.get("path"), str):
                yield field, entry["path"]
    for field in ("configMapGenerator", "secretGenerator"):
        for entry in _list(content.get(field)):
            files = [*_list(entry.get("files")), *_list(entry.get("envs"))] if isinstance(entry, dict) else []
            for name in files:
                yield field, str(name).rpartition("=")[2]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []  # another shape is kustomize's to refuse


def _is_remote(name: str) -> bool:
    return "://" in name or name.startswith("git@") or name.startswith("github.com/") or "?ref=" in name


def build(folder: Path, hidden: Collection[str]) -> str:
    """The manifests that the kustomization makes. Raises ConfigurationError, without what is `hidden`, where it cannot
    be built here."""
    command = _builder()
    if command is None:
        raise ConfigurationError(
            f"{folder} is an overlay, which has to be built first, and neither kubectl nor kustomize is on the PATH. "
            f"Where one is: kubectl kustomize {folder} > built.yaml && paceline deploy check built.yaml"
        )
    try:
        done = subprocess.run([*command, str(folder)], capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        raise ConfigurationError(f"{folder}: {' '.join(command)} did not end within 2 minutes.") from None
    if done.returncode != 0:
        said = " ".join(redacted(done.stderr, hidden).split())[-400:]
        raise ConfigurationError(f"{folder} cannot be built: {' '.join(command)}: {said}")
    return done.stdout


def _builder() -> Sequence[str] | None:
    if shutil.which("kustomize"):
        return ("kustomize", "build")
    return ("kubectl", "kustomize") if shutil.which("kubectl") else None
