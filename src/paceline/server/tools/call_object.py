"""CallObject: the JSON object of one tool call, character by character: its name, and the text of its arguments."""

from __future__ import annotations

import json
import re

_HEAD = r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"%s"\s*:\s*\{'


class CallObject:
    def __init__(self, arguments_key: str) -> None:
        self.text = ""
        self.name: str | None = None  # once it is known
        self.is_closed = False
        self._key = arguments_key
        self._head = re.compile(_HEAD % arguments_key)
        self._depth = 0
        self._in_string = False
        self._is_escaped = False
        self._in_arguments = False

    def step(self, character: str) -> str:
        """Take one character; what it adds to the arguments."""
        self.text += character
        opens = self._step(character)
        if opens and self._depth == 2 and self.name is None and (match := self._head.fullmatch(self.text)):
            self.name = _name(match[1])
            self._in_arguments = self.name is not None
            return character if self._in_arguments else ""
        if not self._in_arguments:
            return ""
        if not self._in_string and self._depth == 1:
            self._in_arguments = False  # this was their last brace
        return character

    def _step(self, character: str) -> bool:
        """Keep count of braces and strings; is this an opening brace?"""
        if self._is_escaped:
            self._is_escaped = False
        elif self._in_string:
            self._is_escaped = character == "\\"
            self._in_string = character != '"'
        elif character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
            return character == "{"
        elif character in "}]":
            self._depth -= 1
            self.is_closed = self._depth <= 0
        return False

    def read_whole(self) -> str | None:
        """The arguments of a closed object whose keys come in another order, or whose arguments are JSON in a text.

        Sets `name`; None if it is no call.
        """
        try:
            found = json.loads(self.text, strict=False)
            name, arguments = found["name"], found.get(self._key, {})
            if isinstance(arguments, str):
                arguments = json.loads(arguments, strict=False)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        if not isinstance(name, str) or not isinstance(arguments, dict):
            return None
        self.name = name
        return json.dumps(arguments, ensure_ascii=False)


def _name(text: str) -> str | None:
    try:
        return str(json.loads(text, strict=False))
    except ValueError:
        return None
