"""JSON that says each thing once: a name that an object repeats is refused, where Python's parser takes the last. And
files with a value a line."""

from __future__ import annotations

import json
from typing import Any

from paceline.errors import InvalidRequestError


def loads(text: str) -> Any:
    """Raises json.JSONDecodeError, or InvalidRequestError for a repeated name, a number of thousands of digits, or
    values nested deeper than Python can follow."""
    try:
        return json.loads(text, object_pairs_hook=_once)
    except (json.JSONDecodeError, InvalidRequestError):
        raise
    except RecursionError:
        raise InvalidRequestError("The JSON is nested too deeply.", code="invalid_json") from None
    except ValueError:
        raise InvalidRequestError("A number in the JSON has thousands of digits.", code="invalid_json") from None


def numbered_lines(text: str) -> list[tuple[int, str]]:
    """The lines that hold something, with their numbers from 1. Only an end of line ends one: Unicode's other
    separators may stand within JSON's strings. A byte-order mark is no part of the first."""
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    return [(number, line) for number, line in enumerate(lines, 1) if line.strip()]


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise InvalidRequestError(
            f"{twice!a:.80} is given more than once in one object; give it once.", param=twice[:80], code="invalid_json"
        )
    return found
