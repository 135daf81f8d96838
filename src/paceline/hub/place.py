"""pull_to: a model as a plain directory of the user's choice, such as a volume that servers mount read-only.

Contract
- The directory is whole or absent: it is filled beside its place and renamed at the end.
- Asked again, a directory that holds the same model is left as it is; one that holds another is an error.
- A download from the hub that broke off goes on where it was; two processes do not disturb each other.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from paceline.errors import ConfigurationError
from paceline.hub import cache
from paceline.hub.catalog import KNOWN_MODELS
from paceline.hub.repository import fetch_repository, is_repo_id
from paceline.hub.resolve import pull

RECORD = ".paceline-source.json"  # written last; says what the directory is a copy of


def pull_to(name: str, directory: Path, progress: Callable[[str], None] | None = None) -> Path:
    """Bring `name` (a known name or a repo id) to `directory`."""
    say = progress or (lambda _line: None)
    directory = directory.absolute()
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(directory.parent / f".{directory.name}.lock"):
            return directory if _is_there(name, directory) else _place(name, directory, say)
    except OSError as error:
        raise ConfigurationError(
            f"'{name}' cannot be put at {directory}: {error.strerror or error}. Is the volume writable for this user, "
            "and large enough?"
        ) from error


def _is_there(name: str, directory: Path) -> bool:
    if not directory.exists() or (directory.is_dir() and not any(directory.iterdir())):
        return False
    source = None
    if (directory / RECORD).is_file() and cache.is_model_directory(directory):
        source = json.loads((directory / RECORD).read_text()).get("source")
    if source == name:
        return True
    holds = f"'{source}'" if source else "something that was not pulled there"
    raise ConfigurationError(f"{directory} holds {holds}, not '{name}'. Give another directory, or remove this one.")


def _place(name: str, directory: Path, say: Callable[[str], None]) -> Path:
    scratch = directory.parent / f".{directory.name}.partial"
    if name not in KNOWN_MODELS and is_repo_id(name):
        fetch_repository(name, say, scratch)
        shutil.rmtree(scratch / ".cache", ignore_errors=True)  # the hub client's own notes
    else:
        source = pull(name, say)
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.copytree(source, scratch)
    record = {"source": name, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    (scratch / RECORD).write_text(json.dumps(record) + "\n")
    if directory.is_dir():
        directory.rmdir()  # empty, such as a folder that a volume came with
    scratch.rename(directory)
    return directory
