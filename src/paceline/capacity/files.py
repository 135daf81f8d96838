"""Files that a user names: read, or refused in words."""

from __future__ import annotations

from pathlib import Path

from paceline.errors import ConfigurationError


def read_text(path: Path, option: str) -> str:
    """Raises ConfigurationError that names the option, the file and why."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigurationError(f"{option} '{path}' cannot be read: {reason}.") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{option} '{path}' cannot be read: it is not text in UTF-8.") from None
