"""ApiKeys: the keys that may ask. Read from a file or from the environment; the file is read again when it changes.

A file has one key a line, or `NAME KEY`; empty lines and lines that begin with # are left out. Names stand in logs
in place of keys. A file that was emptied revokes every key; one that is missing or wrong leaves them as they were,
because a mistake must not lock everybody out. Keys are kept as digests, and every key is compared in constant time,
whether an earlier one matched or not.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from paceline.errors import ConfigurationError

logger = logging.getLogger(__name__)

MIN_LENGTH = 16  # characters; shorter ones can be guessed
_MOST_PROBLEMS = 20  # that one message tells
_RELOAD_SECONDS = 5.0  # at most this long does a key that was taken out of the file go on to work


class ApiKeys:
    def __init__(self, names_by_digest: dict[bytes, str], file: Path | None, clock: Callable[[], float]) -> None:
        self._names = names_by_digest
        self._file = file
        self._clock = clock
        self._changed = _changed(file) if file else None
        self._looked = clock()

    @classmethod
    def load(
        cls, file: Path | None, text: str | None, source: str, *, clock: Callable[[], float] = time.monotonic
    ) -> ApiKeys | None:
        """From a file, or from `text` with keys between commas or white space; None if neither is given.

        `source` names where the text is from. Raises ConfigurationError.
        """
        if file is not None and text is not None:
            raise ConfigurationError(f"--api-key-file and {source} both give keys; give one.")
        if file is not None:
            names = _parse_file(file)
            if not names:
                raise ConfigurationError(f"{file} holds no key.")
            return cls(names, file, clock)
        if text is None:
            return None
        keys = text.replace(",", " ").split()
        if not keys:
            raise ConfigurationError(f"{source} holds no key.")
        return cls(_named([(f"key{number}", key) for number, key in enumerate(keys, 1)], source), None, clock)

    def name_of(self, key: str) -> str | None:
        """The name of a key; None if it is none."""
        self._reload()
        digest = _digest(key)
        found = None
        for known, name in self._names.items():
            if hmac.compare_digest(known, digest):
                found = name
        return found

    def _reload(self) -> None:
        if self._file is None or self._clock() - self._looked < _RELOAD_SECONDS:
            return
        self._looked = self._clock()
        changed = _changed(self._file)
        if changed == self._changed:
            return
        self._changed = changed
        try:
            self._names = _parse_file(self._file)
            if self._names:
                logger.warning("%s was read again: %d keys.", self._file, len(self._names))
            else:
                logger.error("%s holds no key any more: every request that needs one is refused.", self._file)
        except ConfigurationError as error:
            logger.error("The keys stay as they were: %s", error)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def _changed(file: Path) -> tuple[int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _parse_file(file: Path) -> dict[bytes, str]:
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise ConfigurationError(f"--api-key-file {file} cannot be read: {reason}.") from None
    entries, problems = [], []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) > 2:
            problems.append(f"line {number}: a line is a key, or a name and a key")
        else:
            entries.append((words[0] if len(words) == 2 else f"line{number}", words[-1]))
    return _named(entries, str(file), problems)


def _named(entries: list[tuple[str, str]], source: str, problems: Sequence[str] = ()) -> dict[bytes, str]:
    """Keys by digest. One ConfigurationError says all `problems`, those of the lines and those of the keys."""
    found = [*problems, *(f"the key '{name}' {wrong}" for name, key in entries if (wrong := _what_is_wrong(key)))]
    if found:
        rest = f"; and {len(found) - _MOST_PROBLEMS} more" if len(found) > _MOST_PROBLEMS else ""
        raise ConfigurationError(f"{source}: {'; '.join(found[:_MOST_PROBLEMS])}{rest}.")
    return {_digest(key): name for name, key in entries}


def _what_is_wrong(key: str) -> str:
    if len(key) < MIN_LENGTH:
        return f"has fewer than {MIN_LENGTH} characters"
    if not key.isascii() or not key.isprintable():
        return "has characters that are not visible ASCII, which a header cannot carry"
    return ""
