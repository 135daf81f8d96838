"""Every error that Paceline raises on purpose, so that callers can catch by kind.

A message says what was wrong, what was expected and what to do. The server maps
`InvalidRequestError` to 400 (or the status it carries); everything else is ours.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_LONGEST_NAME = 256  # characters; a name of megabytes is near to none, and finding that out takes seconds


class PacelineError(Exception):
    """Base of all errors raised on purpose."""


class ConfigurationError(PacelineError, ValueError):
    """The engine cannot be built as asked: unknown option, impossible combination, missing capability."""


class UnsupportedModelError(ConfigurationError):
    """The model's architecture or weights cannot be served, and why."""


class InvalidRequestError(PacelineError, ValueError):
    """One request is wrong; `param` names the field, `code` is a short machine-readable reason."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class EngineDeadError(PacelineError, RuntimeError):
    """The engine stopped; every request in flight fails with this."""


class EngineStalledError(PacelineError, RuntimeError):
    """The engine lives and makes no progress; new requests are refused with this until it goes on."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"The engine process is alive and has finished no step for {seconds:.0f} s: requests in flight wait, and "
            "new ones are refused until it goes on. If it does not, restart the server; is the process stopped, does a "
            "device hang (dmesg)? If steps are just long here, raise --stall-after."
        )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ' Did you mean X?' for the nearest known name, or an empty string."""
    if len(name) > _LONGEST_NAME:
        return ""
    close = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" Did you mean '{close[0]}'?" if close else ""
