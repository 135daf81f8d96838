"""Read manifests: files and folders of YAML or JSON, several documents a file, Lists unpacked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from paceline.deploy.check.findings import Document
from paceline.deploy.strict_yaml import StrictLoader
from paceline.errors import ConfigurationError

SUFFIXES = (".yaml", ".yml", ".json")


def read_documents(paths: Sequence[Path]) -> list[Document]:
    """Raises ConfigurationError for what is no manifest at all; kustomizations are left out."""
    found = [document for path in paths for file in _files(path) for document in _read(file)]
    if not found:
        raise ConfigurationError(f"No manifests in {', '.join(map(str, paths)) or 'nothing'}.")
    return found


def load_objects(file: Path) -> list[Any]:
    """Every document of a file that is not empty."""
    try:
        text = file.read_text()
        if file.suffix == ".json":
            return [json.loads(text)]
        return [content for content in yaml.load_all(text, Loader=StrictLoader) if content is not None]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"Cannot read {file}: {getattr(error, 'strerror', None) or error}.") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigurationError(f"{file} cannot be read: {' '.join(str(error).split())}") from None


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES and file.is_file())
    return [path]


def _read(file: Path) -> Iterator[Document]:
    for content in load_objects(file):
        items = (
            content.get("items") if isinstance(content, dict) and str(content.get("kind")).endswith("List") else None
        )
        for item in items if isinstance(items, list) else [content]:
            if not isinstance(item, dict) or not all(isinstance(item.get(key), str) for key in ("apiVersion", "kind")):
                raise ConfigurationError(
                    f"{file} holds something that is no Kubernetes object: no apiVersion and kind."
                )
            if not item["apiVersion"].startswith("kustomize.config.k8s.io/"):
                yield Document(str(file), item)
