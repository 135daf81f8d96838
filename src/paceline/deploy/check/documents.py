"""Read manifests: files, folders and standard input, YAML or JSON, several documents a file, Lists unpacked.

A folder with a kustomization is what that makes: its files as they are, or an overlay, built.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from paceline.deploy.check import kustomize
from paceline.deploy.check.findings import Document
from paceline.deploy.check.kustomize import SUFFIXES
from paceline.deploy.secrecy import masked, secrets_of
from paceline.deploy.strict_yaml import DEEPEST, StrictLoader, in_words
from paceline.errors import ConfigurationError

STDIN = Path("-")


def read_documents(paths: Sequence[Path]) -> list[Document]:
    """Raises ConfigurationError for what is no manifest at all; kustomizations are documents only where they are wrong
    about their files."""
    found = [document for path in paths for document in _read_path(path)]
    if not found:
        raise ConfigurationError(f"No manifests in {', '.join(map(str, paths)) or 'nothing'}.")
    return found


def load_objects(file: Path) -> list[Any]:
    """Every document of a file that is not empty."""
    try:
        text = sys.stdin.buffer.read().decode() if file == STDIN else file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigurationError(f"Cannot read {file}: it is no text in UTF-8.") from None
    except OSError as error:
        raise ConfigurationError(f"Cannot read {file}: {error.strerror or error}.") from None
    return parse_objects(text, str(file))


def parse_objects(text: str, name: str) -> list[Any]:
    try:
        if name.endswith(".json"):
            return [_not_too_deep(json.loads(text))]
        return [content for content in yaml.load_all(text, Loader=StrictLoader) if content is not None]
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"{name} cannot be read: {error}") from None
    except RecursionError:
        raise ConfigurationError(f"{name} cannot be read: too many lists and mappings are inside each other.") from None
    except (yaml.YAMLError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{name} cannot be read: it is {in_words(error)}") from None


def _not_too_deep(content: Any) -> Any:
    level = [content]
    for _ in range(DEEPEST):
        level = [
            item
            for each in level
            if isinstance(each, dict | list)
            for item in (each.values() if isinstance(each, dict) else each)
        ]
    if level:
        raise RecursionError
    return content


def _read_path(path: Path) -> Iterator[Document]:
    if path == STDIN:
        yield from _documents(load_objects(path), "standard input")
    elif path.is_dir() or path.name in kustomize.NAMES:
        yield from _folder(path if path.is_dir() else path.parent)
    else:
        yield from _file(path)


def _folder(folder: Path) -> Iterator[Document]:
    file = kustomize.kustomization_of(folder)
    for content in kustomize.with_kind(load_objects(file)) if file else []:
        wrong = list(kustomize.kustomization_findings(file, content)) if file else []
        if wrong:
            yield Document(str(file), masked(content), content)
        if kustomize.is_overlay(folder, content):
            if not any(finding.level == "error" for finding in wrong):
                built = parse_objects(kustomize.build(folder, secrets_of(content)), "")
                yield from _documents(built, f"{folder} (built)", is_built=True)
            return
    for entry in sorted(folder.iterdir()):
        if entry.is_dir():
            yield from _folder(entry)
        elif entry.suffix in SUFFIXES and entry.is_file() and entry != file:
            yield from _file(entry)


def _file(file: Path) -> Iterator[Document]:
    yield from _documents(load_objects(file), str(file))


def _documents(objects: Sequence[Any], name: str, *, is_built: bool = False) -> Iterator[Document]:
    for content in objects:
        items = (
            content.get("items") if isinstance(content, dict) and str(content.get("kind")).endswith("List") else None
        )
        for item in items if isinstance(items, list) else [content]:
            if not isinstance(item, dict) or not all(isinstance(item.get(key), str) for key in ("apiVersion", "kind")):
                raise ConfigurationError(f"{name} holds what is no Kubernetes object: no apiVersion and kind.")
            if not kustomize.is_kustomization(item):
                yield Document(name, masked(item), item, is_built)
