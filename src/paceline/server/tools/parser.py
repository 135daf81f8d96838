"""Tool calls in the text of an answer, read as it comes.

Contract
- `feed` and `finish` return pieces in order: content, the beginning of a call, text of its arguments. Their sum does
  not depend on where the text was cut: it is read one character at a time.
- The arguments are given out as the model writes them, from the moment its name is known. Where they come before the
  name, or as a text of JSON, the call is given out whole.
- What looks like a call and is none is content. A call that the end of the text cuts off stays cut off.
  Where nothing but calls can come, nothing is content.
- White space before and between calls is no content.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum, auto

from paceline.server.tools.call_object import CallObject
from paceline.server.tools.formats import ToolFormat


@dataclass(frozen=True, slots=True)
class Content:
    text: str


@dataclass(frozen=True, slots=True)
class CallBegins:
    index: int
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    index: int
    text: str


Piece = Content | CallBegins | Arguments


class _State(Enum):
    START = auto()  # nothing but white space so far: calls without a marker can only begin here
    TEXT = auto()
    BETWEEN = auto()  # behind the marker, or behind a call: the next object, or the end of the calls
    CALL = auto()
    BEHIND = auto()  # behind a call's object: its closing tag


class ToolParser:
    def __init__(
        self,
        form: ToolFormat,
        functions: Collection[str],
        *,
        parallel: bool = True,
        begun: bool = False,
        forced: bool = False,
        hidden: Collection[str] = (),
    ) -> None:
        """`parallel` false: calls behind the first one are dropped. `begun`: the opening is in the prompt. `forced`:
        the answer is calls and nothing else, so what the end cuts off is no content. `hidden`: texts of special tokens,
        which are no content."""
        self.num_calls = 0
        self._form = form
        self._functions = functions
        self._parallel = parallel
        self._forced = forced
        self._marker = form.opening or form.shape.trigger
        self._closing = form.shape.close.lstrip("}").strip()
        self._hidden = tuple(text for text in hidden if text != self._marker)
        self._watched = (*((self._marker,) if self._marker else ()), *self._hidden)
        self._state = _State.BETWEEN if begun else _State.TEXT if self._marker else _State.START
        self._held = ""  # read and not given out
        self._call = CallObject(form.arguments_key)
        self._is_announced = False
        self._pieces: list[Piece] = []
        self._steps = {
            _State.START: self._step_start,
            _State.TEXT: self._step_text,
            _State.BETWEEN: self._step_between,
            _State.CALL: self._step_call,
            _State.BEHIND: self._step_behind,
        }

    def feed(self, text: str) -> list[Piece]:
        for character in text:
            self._steps[self._state](character)
        return self._take()

    def finish(self) -> list[Piece]:
        is_cut_off = self._state is _State.CALL and self._is_announced
        is_filler = self._state in (_State.BETWEEN, _State.BEHIND) and self.num_calls
        if not is_cut_off and not is_filler:
            self._give_out(self._held)
        self._held = ""
        return self._take()

    def _take(self) -> list[Piece]:
        pieces, self._pieces = list(_joined(self._pieces)), []
        return pieces

    def _give_out(self, text: str) -> None:
        if text and not self._forced and (text.strip() or not self.num_calls):
            self._pieces.append(Content(text))

    # One character in each state

    def _step_start(self, character: str) -> None:
        if character == "{":
            self._begin_call(self._held + character)
        elif character.isspace():
            self._held += character
        else:
            self._state = _State.TEXT
            self._step_text(character)

    def _step_text(self, character: str) -> None:
        self._held += character
        if self._marker and self._held.endswith(self._marker):
            before = self._held[: -len(self._marker)].rstrip()
            self._give_out(before)
            self._held, self._state = self._marker, _State.BETWEEN
            return
        for hidden in self._hidden:
            self._held = self._held.removesuffix(hidden)
        ready = self._held[: len(self._held) - _overlap(self._held, self._watched)]
        if self._marker:
            ready = ready.rstrip()  # white space before a call is no content
        if ready:
            self._held = self._held[len(ready) :]
            self._give_out(ready)

    def _step_between(self, character: str) -> None:
        if character == "{":
            self._begin_call(self._held + character)
        elif character.isspace() or character in ",;[]":
            self._held += character
        else:  # these are no calls, or no more of them
            held, self._held, self._state = self._held, "", _State.TEXT
            if self.num_calls and held.strip(" \n\r\t,;[]") == "":
                held = ""
            self._give_out(held)
            self._step_text(character)

    def _begin_call(self, held: str) -> None:
        self._held, self._state = held, _State.CALL
        self._call, self._is_announced = CallObject(self._form.arguments_key), False
        self._call.step("{")

    def _step_call(self, character: str) -> None:
        self._held += character
        arguments: str | None = self._call.step(character)
        if self._call.is_closed and self._call.name is None:
            arguments = self._call.read_whole()
        if self._call.name is not None and not self._is_announced and self._is_known(self._call.name):
            self._is_announced = True
            if self._is_wanted:
                self._pieces.append(CallBegins(self.num_calls, self._call.name))
        if self._is_announced and self._is_wanted and arguments:
            self._pieces.append(Arguments(self.num_calls, arguments))
        if self._call.is_closed:
            self._end_call()

    @property
    def _is_wanted(self) -> bool:
        return self._parallel or self.num_calls == 0

    def _is_known(self, name: str) -> bool:
        """Where calls have no marker an object is one only if it names a function of the request."""
        return self._marker is not None or name in self._functions

    def _end_call(self) -> None:
        if self._is_announced:
            self.num_calls += 1
            self._held = ""
            self._state = _State.BEHIND if self._closing else _State.BETWEEN
        else:
            held, self._held, self._state = self._held, "", _State.TEXT
            self._give_out(held)

    def _step_behind(self, character: str) -> None:
        self._held += character
        seen = self._held.lstrip()
        if seen == self._closing:
            self._held, self._state = "", _State.TEXT
        elif not self._closing.startswith(seen):
            held, self._held, self._state = self._held, "", _State.TEXT
            for again in held:
                self._steps[self._state](again)


def _joined(pieces: Iterable[Piece]) -> Iterable[Piece]:
    """Neighbours of one kind as one piece."""
    last: Piece | None = None
    for piece in pieces:
        if isinstance(last, Content) and isinstance(piece, Content):
            last = Content(last.text + piece.text)
        elif isinstance(last, Arguments) and isinstance(piece, Arguments):
            last = Arguments(last.index, last.text + piece.text)
        else:
            if last is not None:
                yield last
            last = piece
    if last is not None:
        yield last


def _overlap(text: str, markers: Collection[str]) -> int:
    """Characters at the end of a text that may be the beginning of a marker."""
    longest = 0
    for marker in markers:
        for length in range(min(len(marker) - 1, len(text)), longest, -1):
            if text.endswith(marker[:length]):
                longest = length
                break
    return longest
