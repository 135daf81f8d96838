"""Files and folders that commands write: tried before the work that fills them, written whole or not at all."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Self

from paceline.bench.files import replacing
from paceline.claim import Claim
from paceline.errors import ConfigurationError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # said, with exit status 1, by whoever runs commands
_LOCK = ".paceline-bench.lock"


def refusal(option: str, path: Path, error: OSError) -> Exception:
    """What to raise instead of `error`."""
    if error.errno in _FULL:
        return error
    return ConfigurationError(f"{option} '{path}' cannot be written: {error.strerror or error}.")


def _refuse_dash(path: Path, option: str) -> None:
    if str(path) == "-":
        raise ConfigurationError(f"{option} - would be called '-': give a name. Standard output is /dev/stdout.")


def write_whole(path: Path, text: str, option: str = "--out") -> None:
    """Under another name first, so that no half file bears this one."""
    _refuse_dash(path, option)
    try:
        target = path.resolve()  # where a link leads, not the link
        if target.exists() and not target.is_file():  # a pipe, /dev/stdout: cannot be replaced
            target.write_text(text, encoding="utf-8")
            return
        with replacing(target) as partial:
            partial.write_text(text, encoding="utf-8")
    except OSError as error:
        raise refusal(option, path, error) from None


def check_file(path: Path, option: str = "--out") -> None:
    """Raises ConfigurationError if `path` could not be written; leaves nothing."""
    _refuse_dash(path, option)
    if path.is_dir():
        raise ConfigurationError(f"{option} '{path}' is a folder: give the name of a file.")
    if not path.exists():
        check_folder(path.parent, option, path)


def check_folder(folder: Path, option: str = "--out", named: Path | None = None) -> None:
    """`folder` must be there. `named`: what the user wrote."""
    try:
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise refusal(option, named or folder, error) from None


def make_folder(path: Path, option: str = "--out") -> None:
    """There and writable from here on, whatever it holds. Raises ConfigurationError if it cannot be."""
    _refuse_dash(path, option)
    try:
        if path.exists() and not path.is_dir():
            raise ConfigurationError(f"{option} '{path}' is a file: give the name of a folder.")
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise refusal(option, path, error) from None
    check_folder(path, option)


@contextmanager
def claimed_file(path: Path | None, option: str = "--out") -> Iterator[None]:
    """This process's alone, and known to be writable, while the work goes on that fills it. None: nothing to claim.

    Raises ConfigurationError if it cannot be written, or if another run writes it."""
    if path is None:
        yield
        return
    check_file(path, option)
    target = path.resolve()  # one file by two names is one file
    if target.exists() and not target.is_file():  # a pipe, /dev/stdout: many may write there
        yield
        return
    try:
        claim = Claim(target.with_name(f".{target.name}.lock"), f"{option} '{path}'", "Give another file")
    except OSError as error:
        raise refusal(option, path, error) from None
    with claim:
        yield


class OutFolder:
    """A folder for results: made before the work and this process's alone until it ends; taken away (with the parents
    made for it) if it stays empty."""

    def __init__(self, path: Path, option: str = "--out", *, is_new: bool = True) -> None:
        """Raises ConfigurationError if it cannot be made or written to, is another run's, or (`is_new`) holds
        something."""
        self.path = path
        try:
            self._made = [folder for folder in (path, *path.parents) if not folder.exists()]
            make_folder(path, option)
            self._claim = Claim(path / _LOCK, f"{option} '{path}'", "Give another folder")
            if is_new and any(entry.name != _LOCK for entry in path.iterdir()):
                self._claim.release()
                raise ConfigurationError(f"{option} '{path}' is not empty: give a new folder.")
        except OSError as error:
            raise refusal(option, path, error) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """An empty folder that was there before stays."""
        self._claim.release()
        for folder in self._made:
            if not folder.is_dir() or any(folder.iterdir()):
                return
            folder.rmdir()
