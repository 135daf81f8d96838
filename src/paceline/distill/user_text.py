"""A user's own traffic as beginnings of rows: conversations that the target answers anew, texts as they are.

A line of the JSONL file is one of
- {"messages": [{"role": …, "content": …}, …]}: up to its last user turn, through the target's chat template. What was
  answered in the file is not learnt: the draft must guess what this target says.
- {"text": "…"}: plain text, learnt as it is, joined and cut into rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.errors import ConfigurationError, InvalidRequestError
from paceline.json_text import loads, numbered_lines

_HELD_OUT_SHARE = 8

Messages = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class UserText:
    """Beginnings of rows in token ids; one as long as a row is learnt whole."""

    beginnings: tuple[np.ndarray, ...]
    num_too_long: int = 0  # conversations left out: there would be no room for an answer

    def split(self, seed: int) -> tuple[UserText, UserText]:
        """An eighth that is never learnt from, and the rest. Equal beginnings stay together."""
        distinct = {beginning.tobytes(): number for number, beginning in reversed(list(enumerate(self.beginnings)))}
        order = np.random.default_rng(seed).permutation(sorted(distinct.values()))
        held = {self.beginnings[number].tobytes() for number in order[: max(1, len(order) // _HELD_OUT_SHARE)]}
        parts = [
            UserText(tuple(b for b in self.beginnings if (b.tobytes() in held) == wanted)) for wanted in (True, False)
        ]
        return parts[0], parts[1]

    def rows(self, count: int, length: int, first: int, seed: int) -> np.ndarray:
        """[count, length] int64 padded with -1: `first` of the endless list and those after it. All beginnings are
        used before one comes again."""
        total = len(self.beginnings)
        out = np.full((count, length), -1, dtype=np.int64)
        for row, position in zip(out, range(first, first + count), strict=True):
            order = np.random.default_rng((seed, position // total)).permutation(total)
            beginning = self.beginnings[order[position % total]]
            row[: len(beginning)] = beginning
        return out


def read_user_text(
    paths: Sequence[Path],
    *,
    chat: Callable[[Messages], list[int]],
    encode: Callable[[str], Sequence[int]],
    separator: int,
    length: int,
) -> UserText:
    """`chat`: messages to the prompt's ids, the assistant's turn opened; `length`: of a row.

    Raises ConfigurationError naming file and line for what is not as said above."""
    prompts: list[np.ndarray] = []
    stream: list[int] = []
    too_long = 0
    for path in paths:
        for where, line in _lines(path):
            if "messages" in line:
                ids = _prompt(line["messages"], chat, where)
                if len(ids) <= length * 3 // 4:
                    prompts.append(np.array(ids))
                else:
                    too_long += 1
            else:
                stream += [separator, *encode(line["text"])]
    pieces = [np.array(stream[at : at + length]) for at in range(0, len(stream) - length + 1, length)]
    if not prompts and not pieces:
        raise ConfigurationError(
            f"{', '.join(map(str, paths))}: nothing to learn from. {too_long} conversations are longer than "
            f"{length * 3 // 4} tokens, and the texts have {len(stream)} tokens together ({length} are needed): "
            "give more data, or change --length."
        )
    found = UserText((*prompts, *pieces), too_long)
    if len({beginning.tobytes() for beginning in found.beginnings}) < 2:
        raise ConfigurationError(f"{', '.join(map(str, paths))}: one row is not enough, since some are held out.")
    return found


def _lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--data {path} cannot be read: {error}.") from None
    for number, raw in numbered_lines(content):
        where = f"{path}, line {number}"
        try:
            line = loads(raw)
        except json.JSONDecodeError as error:
            raise ConfigurationError(f"{where}: not JSON ({error.msg} at column {error.colno}).") from None
        except InvalidRequestError as error:
            raise ConfigurationError(f"{where}: {error}") from None
        if not isinstance(line, dict) or not (
            isinstance(line["messages"], list) if "messages" in line else isinstance(line.get("text"), str)
        ):
            raise ConfigurationError(f'{where}: expected {{"messages": [...]}} or {{"text": "..."}}.')
        if "messages" not in line and not _is_unicode(line["text"]):
            raise ConfigurationError(f"{where}: the text has half of a surrogate pair, which is no character.")
        yield where, line


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _prompt(messages: Any, chat: Callable[[Messages], list[int]], where: str) -> list[int]:
    users = [number for number, message in enumerate(messages) if _role(message) == "user"]
    if not users:
        raise ConfigurationError(f"{where}: the conversation has no user turn.")
    try:
        return chat(messages[: users[-1] + 1])
    except InvalidRequestError as error:
        raise ConfigurationError(f"{where}: {error}") from None


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, dict) else None
