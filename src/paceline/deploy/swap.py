"""Files of a folder are changed all or not at all.

Everything is first written beside, in a temporary folder of the same file system, with a copy of what will be replaced;
then every target is opened for writing; only then files are swapped, each by one rename. Where a rename fails after
all, those before it are taken back.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from paceline.errors import ConfigurationError

_BEFORE = ".before"  # no suffix of manifests, so that nothing takes drafts and copies for some
_DRAFT = ".draft"


def swap_files(texts: Mapping[str, str], gone: Sequence[str], folder: Path) -> None:
    """Write `texts` by name and remove `gone`, in `folder`, which is made if need be.

    Raises ConfigurationError with the folder as it was; or, where even that failed, one that says what is there now.
    """
    made: list[Path] = []
    beside: Path | None = None
    done: list[str] = []
    try:
        made += [each for each in (folder, *folder.parents) if not each.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=".paceline-render-", dir=folder))
        _prepare(texts, gone, folder, beside)
        for name in (*texts, *gone):
            done.append(name)
            if name in texts:
                os.replace(beside / f"{name}{_DRAFT}", folder / name)
            else:
                os.unlink(folder / name)
    except BaseException as fault:
        left = [] if beside is None else _take_back(done, folder, beside)
        if not left:
            _clean(beside, made)
        if isinstance(fault, OSError):
            raise ConfigurationError(_said(fault, left, folder, beside)) from None
        raise
    _clean(beside, [])


def _prepare(texts: Mapping[str, str], gone: Sequence[str], folder: Path, beside: Path) -> None:
    for name, text in texts.items():
        (beside / f"{name}{_DRAFT}").write_text(text, encoding="utf-8")
    for name in (*texts, *gone):
        target = folder / name
        if target.exists():
            shutil.copy2(target, beside / f"{name}{_BEFORE}")
            if name in texts:
                shutil.copymode(target, beside / f"{name}{_DRAFT}")
            with target.open("r+b"):  # refused for files that may not be changed, whatever the folder allows
                pass


def _take_back(done: Sequence[str], folder: Path, beside: Path) -> list[str]:
    """Undo what was done; the names of those that could not be."""
    left = []
    for name in done:
        before, target, draft = beside / f"{name}{_BEFORE}", folder / name, beside / f"{name}{_DRAFT}"
        try:
            if draft.exists() or (target.exists() and not draft.exists() and _same(before, target)):
                continue  # not reached
            if before.exists():
                os.replace(before, target)
            else:
                target.unlink(missing_ok=True)
        except OSError:
            left.append(name)
    return left


def _same(one: Path, other: Path) -> bool:
    return one.exists() and one.read_bytes() == other.read_bytes()


def _clean(beside: Path | None, made: Sequence[Path]) -> None:
    if beside is not None:
        shutil.rmtree(beside, ignore_errors=True)
    for each in made:  # the innermost first
        with contextlib.suppress(OSError):
            each.rmdir()


def _said(fault: OSError, left: Sequence[str], folder: Path, beside: Path | None) -> str:
    where = folder if beside is None and os.path.isdir(folder) else fault.filename2 or fault.filename or folder
    name = str(where)
    why = f"{name if len(name) <= 300 else name[:100] + '…'}: {fault.strerror or fault}"
    if not left:
        return f"Nothing was written: {why}."
    return (
        f"The folder is half written: {why}, and taking back failed for {', '.join(left)}, which are of the new "
        f"rendering or missing; all others are as they were. Copies of the old ones: {beside}/*{_BEFORE}."
    )
