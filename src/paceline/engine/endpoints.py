"""Where the two ends of an engine meet: sockets in a directory that only this user may enter."""

from __future__ import annotations

import tempfile
from pathlib import Path

_MAX_SOCKET_PATH = 100  # bytes that every Unix leaves for the path of a socket


def private_directory() -> Path:
    """A new directory that only this user may enter; under /tmp where the usual place has too long a name."""
    home = Path(tempfile.mkdtemp(prefix="paceline-"))
    if len(str(home)) + len("/commands") <= _MAX_SOCKET_PATH:
        return home
    home.rmdir()
    return Path(tempfile.mkdtemp(prefix="paceline-", dir="/tmp"))


def endpoint(home: Path, name: str) -> str:
    return f"ipc://{home / name}"
