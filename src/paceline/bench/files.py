"""Files that a user names: read, or refused in words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline.errors import ConfigurationError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name beside `path` to write to; what is there at the end becomes `path`, whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        yield partial
        partial.replace(path)
    except OSError as error:
        error.filename = str(path)  # what a user knows of
        raise
    finally:
        partial.unlink(missing_ok=True)


def read_text(path: Path, option: str = "") -> str:
    """Raises ConfigurationError that names the option (none: an argument), the file and why."""
    name = f"{option} '{path}'".strip()
    try:
        return path.read_text(encoding="utf-8-sig")  # with or without the mark that some editors put first
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigurationError(f"{name} cannot be read: {reason}.") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{name} cannot be read: it is not text in UTF-8.") from None
