"""A folder that one process writes into: a second is refused, and a dead one's claim is no claim."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from paceline.errors import ConfigurationError

_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # a file system that has none: nothing to be refused by
NAME = ".paceline-bench.lock"


class Claim:
    """Held by an advisory lock on a file in the folder: the kernel lets go of it however the holder ends, so that
    nothing stale can be left. `release` takes the file away."""

    def __init__(self, folder: Path, option: str = "--out") -> None:
        """Raises ConfigurationError if another process has the folder; OSError as of any file."""
        self._path = folder / NAME
        while True:
            self._file = os.open(self._path, os.O_CREAT | os.O_RDWR, 0o644)
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(self._file)
                raise ConfigurationError(
                    f"{option} '{folder}': another run writes there now. Give another folder, or wait for its end."
                ) from None
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
            if self._is_still_there():
                return
            os.close(self._file)  # the former holder took it away in between: nobody else would see this lock

    def _is_still_there(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._file), self._path.stat())
        except FileNotFoundError:
            return False

    def release(self) -> None:
        self._path.unlink(missing_ok=True)
        os.close(self._file)
