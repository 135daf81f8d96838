"""The model cache: `$PACELINE_HOME/models/<name>/`, each directory whole or absent.

Ownership: only `build` creates a directory here and only `remove` deletes one; both hold the model's lock.
`paceline.json` is written last, inside the temporary folder, and says where the model came from.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from paceline.errors import ConfigurationError, did_you_mean
from paceline.hub.catalog import KNOWN_MODELS, ShippedDirectory

RECORD = "paceline.json"
CONVERTER_VERSION = 1  # a cached conversion of an older version is built again


@dataclass(frozen=True, slots=True)
class ModelInfo:
    name: str
    path: Path
    size_bytes: int
    dtype: str
    origin: str


def paceline_home() -> Path:
    return Path(os.environ.get("PACELINE_HOME") or Path.home() / ".cache" / "paceline").expanduser()


def models_directory() -> Path:
    return paceline_home() / "models"


def is_model_directory(path: Path) -> bool:
    """Whether it can be served: a configuration and safetensors weights."""
    return (path / "config.json").is_file() and any(path.glob("*.safetensors"))


def cached(name: str) -> Path | None:
    """The whole, current model of this name, or None."""
    path = models_directory() / name
    record = read_record(path)
    current = record is not None and record.get("converter_version") == CONVERTER_VERSION
    return path if current and is_model_directory(path) else None


def read_record(path: Path) -> dict[str, Any] | None:
    try:
        record = json.loads((path / RECORD).read_text())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def build(name: str, fill: Callable[[Path], dict[str, str]]) -> Path:
    """Return the model `name`, building it first if needed: `fill(folder)` writes the files, returns its record.

    A second process waits on the lock and then finds the model; if `fill` raises, nothing stays behind.
    """
    target = models_directory() / name
    _make_writable_directory(target.parent)
    with FileLock(target.parent / f".{name}.lock"):
        found = cached(name)
        if found is not None:
            return found
        with _scratch(target.parent / f".{name}.partial") as scratch:
            folder = scratch / "model"
            folder.mkdir()
            record = fill(folder) | {"name": name, "converter_version": CONVERTER_VERSION}
            (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n")
            shutil.rmtree(target, ignore_errors=True)  # an older conversion
            folder.rename(target)
    return target


@contextmanager
def _scratch(path: Path) -> Iterator[Path]:
    """An empty folder for the holder of the lock; what a killed holder left in it goes first."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _make_writable_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"The model cache {path} cannot be created ({error.strerror}). Set PACELINE_HOME to a writable folder."
        ) from error


def list_models() -> list[ModelInfo]:
    shipped = [
        _describe(name, source.path, "shipped with Paceline")
        for name, source in KNOWN_MODELS.items()
        if isinstance(source, ShippedDirectory) and is_model_directory(source.path)
    ]
    folders = sorted(models_directory().glob("[!.]*")) if models_directory().is_dir() else []
    pulled = [_describe(path.name, path, _origin(path)) for path in folders if cached(path.name)]
    return sorted(pulled + shipped, key=lambda info: info.name)


def _origin(path: Path) -> str:
    return str((read_record(path) or {}).get("origin", "unknown"))


def _describe(name: str, path: Path, origin: str) -> ModelInfo:
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    config = json.loads((path / "config.json").read_text())
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "unknown")
    return ModelInfo(name, path, size, dtype, origin)


def remove(name: str) -> Path:
    """Delete a model from the cache and return where it was."""
    if isinstance(KNOWN_MODELS.get(name), ShippedDirectory):
        raise ConfigurationError(f"'{name}' is shipped inside the Paceline package and cannot be removed.")
    names = [path.name for path in models_directory().glob("[!.]*") if path.is_dir()]
    if name not in names:
        raise ConfigurationError(
            f"No model '{name}' in {models_directory()}.{did_you_mean(name, names)} See `paceline models list`."
        )
    path = models_directory() / name
    with FileLock(path.parent / f".{name}.lock"):
        shutil.rmtree(path)
    return path
