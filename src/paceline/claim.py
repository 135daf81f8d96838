"""What one process writes to at a time: a second is refused and told who has it; a dead one's claim is no claim."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from paceline.errors import ConfigurationError

_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # a file system that has none: nothing to be refused by
_LONGEST = 500


class Claim:
    """Held by an advisory lock on the file `lock`: the kernel lets go of it however the holder ends, so that nothing
    stale can be left. The file says who holds it; `release` takes it away."""

    def __init__(self, lock: Path, claimed: str, advice: str) -> None:
        """`claimed`: as the user named it, such as "--out 'x.json'"; `advice`: what else they might give.

        Raises ConfigurationError if another process has it; OSError as of any file."""
        self._path = lock
        while True:
            self._file = os.open(lock, os.O_CREAT | os.O_RDWR, 0o644)
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.read(self._file, _LONGEST).decode(errors="replace").strip()
                os.close(self._file)
                raise ConfigurationError(
                    f"{claimed}: another run writes there now{f' ({holder})' if holder else ''}. {advice}, or wait for "
                    "its end."
                ) from None
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    os.close(self._file)
                    raise
            if self._is_still_there():
                break
            os.close(self._file)  # the former holder took it away in between: nobody else would see this lock
        os.truncate(self._file, 0)
        os.write(self._file, _who().encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _is_still_there(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._file), self._path.stat())
        except FileNotFoundError:
            return False

    def release(self) -> None:
        self._path.unlink(missing_ok=True)
        os.close(self._file)


def _who() -> str:
    """No arguments beyond the names of commands: they may hold what is nobody else's to read."""
    words = ["paceline"]
    for word in sys.argv[1:3]:
        if not word.isalpha():
            break
        words.append(word)
    return f"process {os.getpid()}, {' '.join(words)}, since {datetime.now(UTC):%Y-%m-%d %H:%M} UTC\n"
