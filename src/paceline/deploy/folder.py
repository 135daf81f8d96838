"""A folder of rendered files: what in it is ours, and how one rendering follows another.

Ours is a plain file directly in the folder that carries our header; and one that goes is also in the record that the
last rendering left in kustomization.yaml, so that a copy of ours under another name stays. All the rest is the user's:
it is neither replaced nor removed, whatever the kustomization says.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from paceline.deploy.render import Rendered
from paceline.deploy.secrecy import nothing_secret_in_errors, redacted
from paceline.deploy.strict_yaml import StrictLoader, in_words
from paceline.deploy.swap import swap_files
from paceline.deploy.write import HEADER, as_yaml
from paceline.errors import ConfigurationError

KUSTOMIZATION = "kustomization.yaml"
_RECORD = "# Files of this rendering: "
_OURS = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
_INSTEAD = "keep what is yours in an overlay, a folder of its own that names this one"


@dataclass(frozen=True, slots=True)
class Written:
    files: tuple[Path, ...]
    notes: tuple[str, ...]  # for the user: what stays, though this rendering does not write it


@dataclass(frozen=True, slots=True)
class _Earlier:
    """What the kustomization of the folder says."""

    named: tuple[str, ...] = ()  # under resources
    recorded: tuple[str, ...] = ()  # that the last rendering wrote


def write_files(rendered: Rendered, folder: Path) -> Written:
    """One file a manifest and a kustomization.yaml over them; files of the last rendering go when no longer needed.

    Raises ConfigurationError, with the folder as it was, when anything cannot be written or would replace what is not
    ours.
    """
    with nothing_secret_in_errors():
        return _write(rendered, folder)


def _write(rendered: Rendered, folder: Path) -> Written:
    files = rendered.files()
    kustomization: dict[str, Any] = {**_OURS, "resources": list(files)}
    texts = {name: HEADER + as_yaml(manifest) for name, manifest in files.items()}
    texts[KUSTOMIZATION] = f"{HEADER}{_RECORD}{', '.join(files)}\n{as_yaml(kustomization)}"
    try:
        earlier = _earlier(folder)
        for name in texts:
            _check_replaceable(folder / name)
        gone = [name for name in earlier.recorded if name not in texts and _is_ours(folder, name)]
    except OSError as error:
        raise ConfigurationError(f"Nothing was written: {error.filename or folder}: {error.strerror}.") from None
    swap_files(texts, gone, folder)
    return Written(tuple(folder / name for name in texts), tuple(_stays(folder, earlier, {*texts, *gone})))


def _stays(folder: Path, earlier: _Earlier, known: set[str]) -> Sequence[str]:
    kept = [name for name in dict.fromkeys((*earlier.named, *earlier.recorded)) if name not in known]
    there = [name for name in kept if os.path.lexists(folder / name)]
    if not there:
        return []
    said = (
        f"{folder / KUSTOMIZATION} named {', '.join(there)}, of which the record of its last rendering knows nothing: "
        f"left as it is, and no longer named there. To have it applied, {_INSTEAD}."
    )
    return [redacted(said)]


def _earlier(folder: Path) -> _Earlier:
    """Raises ConfigurationError where the kustomization is not ours, or has more than a rendering writes."""
    path = folder / KUSTOMIZATION
    if not os.path.lexists(path):
        return _Earlier()
    _check_replaceable(path)
    text = path.read_text(encoding="utf-8")
    try:
        content = yaml.load(text, Loader=StrictLoader)
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigurationError(f"Nothing was written: {path} was changed, and is {in_words(error)}") from None
    if not isinstance(content, dict) or not isinstance(named := content.get("resources"), list):
        raise ConfigurationError(
            f"Nothing was written: {path} was changed, and its resources are no list. Correct it, or remove the file."
        )
    added = [str(key) for key in content if key not in (*_OURS, "resources")]
    if added:
        raise ConfigurationError(
            f"Nothing was written: {path} has {', '.join(added)}, which a rendering would take away. Move it: "
            f"{_INSTEAD}."
        )
    record = next((line.removeprefix(_RECORD) for line in text.splitlines() if line.startswith(_RECORD)), "")
    return _Earlier(tuple(map(str, named)), tuple(record.split(", ")) if record else ())


def _check_replaceable(path: Path) -> None:
    if not os.path.lexists(path):
        return
    if not stat.S_ISREG(path.lstat().st_mode):
        what = "a folder" if path.is_dir() and not path.is_symlink() else "no plain file"
        raise ConfigurationError(f"Nothing was written: {path} is {what}. Move it, or give another folder with --out.")
    if not _has_header(path):
        raise ConfigurationError(
            f"Nothing was written: {path} is not from `paceline deploy render`. Give another folder with --out."
        )


def _is_ours(folder: Path, name: str) -> bool:
    path = folder / name
    is_plain = os.path.basename(name) == name and os.path.lexists(path) and stat.S_ISREG(path.lstat().st_mode)
    return is_plain and _has_header(path)


def _has_header(path: Path) -> bool:
    with path.open(encoding="utf-8", errors="replace") as stream:  # with any end of lines
        return stream.readline() == HEADER
