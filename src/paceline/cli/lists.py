"""Lists on the command line, such as 1,2,4: every part a value, none twice; what is not is refused by its option."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.errors import ConfigurationError


def short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."


def parts(option: str, text: str) -> list[str]:
    """'on, off' -> ['on', 'off']."""
    found = [part.strip() for part in text.split(",")]
    if "" in found:
        raise ConfigurationError(f"{option} {short(text)}: a part is empty; give values separated by single commas.")
    refuse_twice(option, text, found)
    return found


def numbers(option: str, text: str, kind: type[int] | type[float] = int, example: str = "1,2,4") -> list[float]:
    """In the order given."""
    try:
        found = [kind(part) for part in text.split(",")]
    except ValueError:
        words = "whole numbers" if kind is int else "numbers"
        raise ConfigurationError(
            f"{option} {short(text)}: give {words}, separated by commas, such as {example}."
        ) from None
    refuse_twice(option, text, found)
    return found


def whole_numbers(option: str, text: str, example: str = "1,2,4") -> tuple[int, ...]:
    return tuple(int(number) for number in numbers(option, text, int, example))


def refuse_twice(option: str, text: str, values: Sequence[object]) -> None:
    for place, value in enumerate(values):
        if value in values[:place]:
            raise ConfigurationError(f"{option} {short(text)}: {short(str(value))} stands there twice.")
