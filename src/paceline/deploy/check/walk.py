"""Every field of an object, wherever it stands, for rules that go by a field's name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

# What holds texts of the user's own, in which a name means nothing.
_FREE = frozenset({"data", "stringData", "binaryData", "annotations", "labels", "matchLabels", "nodeSelector", "env"})


@dataclass(frozen=True, slots=True)
class Field:
    path: str
    within: str  # the name of the field that holds it; entries of a list are held by the list's field
    name: str
    value: Any


def fields(value: Any, path: str = "$", within: str = "") -> Iterator[Field]:
    """Parents before what they hold; texts of the user's own are not entered."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from fields(item, f"{path}[{index}]", within)
    elif isinstance(value, dict):
        for name, item in value.items():
            place = f"{path}.{name}"
            yield Field(place, within, str(name), item)
            if name not in _FREE:
                yield from fields(item, place, str(name))


def texts(value: Any, path: str = "$") -> Iterator[tuple[str, str]]:
    """(path, text) of every text of an object, all of it; keys are texts at the place of what they hold."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from texts(item, f"{path}[{index}]")
    elif isinstance(value, dict):
        for name, item in value.items():
            if isinstance(name, str):
                yield f"{path}.{name}", name
            yield from texts(item, f"{path}.{name}")
