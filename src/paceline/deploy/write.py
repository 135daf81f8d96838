"""Manifests as YAML text, and files of it: all of them are written or none."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from paceline.deploy.render import Rendered
from paceline.errors import ConfigurationError

HEADER = (
    "# Rendered by `paceline deploy render`: change the values and render again. Overlays have folders of their own.\n"
)
KUSTOMIZATION = "kustomization.yaml"


class _Dumper(yaml.SafeDumper):
    """No anchors: what is equal by chance is written out twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def as_yaml(document: Mapping[str, Any]) -> str:
    """Keys in the order of the document; one line a string, so that a changed option is one changed line."""
    text: str = yaml.dump(
        dict(document), Dumper=_Dumper, sort_keys=False, default_flow_style=False, width=10_000, allow_unicode=True
    )
    return text


def as_stream(rendered: Rendered) -> str:
    return HEADER + "---\n".join(as_yaml(manifest) for manifest in rendered.manifests)


def write_files(rendered: Rendered, folder: Path) -> list[Path]:
    """One file a manifest and a kustomization.yaml over them; files of an earlier rendering go when no longer needed.

    Raises ConfigurationError, with the folder as it was, when anything cannot be written.
    """
    files = rendered.files()
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": list(files),
    }
    texts = {name: HEADER + as_yaml(document) for name, document in (*files.items(), (KUSTOMIZATION, kustomization))}
    made = not folder.exists()
    temporary = {folder / name: folder / f".{name}.{os.getpid()}.tmp" for name in texts}
    try:
        earlier = _earlier_files(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for path, draft in temporary.items():
            if path.is_dir():
                raise IsADirectoryError(21, "a folder is in its place", str(path))
            draft.write_text(texts[path.name])
        for path, draft in temporary.items():
            draft.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            for draft in temporary.values():
                draft.unlink(missing_ok=True)
            if made:
                folder.rmdir()
        raise ConfigurationError(f"Nothing was written: {error.filename or folder}: {error.strerror}.") from None
    for name in earlier - texts.keys():
        (folder / name).unlink(missing_ok=True)
    return [folder / name for name in texts]


def _earlier_files(folder: Path) -> set[str]:
    """What an earlier rendering left there. Raises ConfigurationError where the kustomization is not ours."""
    path = folder / KUSTOMIZATION
    if not path.exists():
        return set()
    text = path.read_text()
    if not text.startswith(HEADER):
        raise ConfigurationError(
            f"Nothing was written: {path} is not from `paceline deploy render`. Give another folder with --out."
        )
    return {name for name in yaml.safe_load(text)["resources"] if (folder / name).is_file()}
