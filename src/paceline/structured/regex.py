"""Regular expressions as far as xgrammar honours them. What it would misread is refused here.

xgrammar matches whole texts, ignores anchors inside a pattern, takes \\A for the letter A, and writes literal
quotes and backslashes of a JSON pattern unescaped into the string. What it refuses itself (look-around,
back-references, word boundaries, flags) is left to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from paceline.errors import InvalidRequestError

_LETTERS = frozenset("dDwWsSnrtfvxubBpP0123456789")  # escapes that xgrammar knows, or refuses itself
_CLASSES = frozenset("dDwWsS")


@dataclass(frozen=True, slots=True)
class _Mark:
    """One character of a pattern; `text` is two characters long for an escape."""

    index: int
    text: str
    in_class: bool
    depth: int  # of brackets


def whole_match(pattern: str, param: str) -> str:
    """A pattern for texts that match from end to end; anchors at its ends say nothing new and are dropped."""
    _check_text(pattern, param)
    return _without_anchors(pattern, param)[1]


def json_pattern(pattern: str, param: str) -> str:
    """The pattern of a JSON schema, which may match anywhere in a string, as one that matches from end to end."""
    _check_text(pattern, param)
    for mark in _marks(pattern):
        _check_inside_a_string(mark, pattern, param)
    at_start, body, at_end = _without_anchors(pattern, param)
    return f"^{'' if at_start else '.*'}({body}){'' if at_end else '.*'}$"


def _check_text(pattern: str, param: str) -> None:
    if "[[:" in pattern:
        raise _wrong(pattern, param, "classes like [[:alpha:]] are not understood; write [a-zA-Z]")
    for mark in _marks(pattern):
        if len(mark.text) == 2 and mark.text[1].isalnum() and mark.text[1] not in _LETTERS:
            raise _wrong(pattern, param, f"{mark.text} is not understood")


def _check_inside_a_string(mark: _Mark, pattern: str, param: str) -> None:
    escape = mark.text[1:]
    if escape and escape.isalnum() and escape not in _CLASSES:
        raise _wrong(pattern, param, f"{mark.text} cannot be enforced inside a JSON string")
    if not mark.in_class and (mark.text in ('"', "\\\\") or not mark.text.isprintable()):
        raise _wrong(pattern, param, "quotes, backslashes and control characters cannot be enforced in a JSON string")


def _without_anchors(pattern: str, param: str) -> tuple[bool, str, bool]:
    """(starts with ^, what stands between, ends with $). Anchors anywhere else, and beside a |, are refused."""
    marks = [mark for mark in _marks(pattern) if not mark.in_class]
    at_start = bool(marks) and marks[0].text == "^"
    at_end = bool(marks) and marks[-1].text == "$" and marks[-1].index == len(pattern) - 1
    inside = marks[at_start : len(marks) - at_end]
    if any(mark.text in ("^", "$") for mark in inside):
        raise _wrong(pattern, param, "^ and $ are understood at the ends of a pattern only")
    if (at_start or at_end) and any(mark.text == "|" and mark.depth == 0 for mark in inside):
        raise _wrong(pattern, param, "an anchor beside | belongs to one alternative; write ^(a|b)$")
    return at_start, pattern[at_start : len(pattern) - at_end], at_end


def _marks(pattern: str) -> Iterator[_Mark]:
    in_class, class_start, depth, index = False, 0, 0, 0
    while index < len(pattern):
        text = pattern[index : index + 2] if pattern[index] == "\\" else pattern[index]
        if in_class:
            first = index == class_start or (index == class_start + 1 and pattern[class_start] == "^")
            in_class = text != "]" or first
            yield _Mark(index, text, True, depth)
        else:
            depth += (text == "(") - (text == ")")
            yield _Mark(index, text, text == "[", depth)
            in_class, class_start = text == "[", index + 1
        index += len(text)


def _wrong(pattern: str, param: str, reason: str) -> InvalidRequestError:
    return InvalidRequestError(f"{param}: the pattern {pattern!r:.200} cannot be used: {reason}.", param=param)
