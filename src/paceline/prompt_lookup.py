"""Prompt lookup: what followed the last few tokens of a text when they last occurred in it is proposed again.

Saxena 2023, "Prompt lookup decoding". The longest n-gram wins, and of its occurrences the latest one. Where the
occurrence runs into the end of the text, copying goes on into the copy, as in LZ77: a text of period 3 is continued
with period 3 for all tokens. Pure Python; the search itself is `bytes.rfind`.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Seq
from dataclasses import dataclass

_CODE = next(code for code in "iIlL" if array(code).itemsize == 4)
_WIDTH = 4  # bytes of a token


@dataclass(frozen=True, slots=True)
class Match:
    """length: of the n-gram that had occurred before. token_ids: what followed it there."""

    length: int
    token_ids: list[int]


class SearchableText:
    """A text that grows at its end, by 4 bytes a token."""

    def __init__(self, token_ids: Seq[int] = ()) -> None:
        self._bytes = bytearray()
        self.extend(token_ids)

    def __len__(self) -> int:
        return len(self._bytes) // _WIDTH

    def extend(self, token_ids: Seq[int]) -> None:
        self._bytes += array(_CODE, token_ids).tobytes()

    def match(self, count: int, least: int, most: int) -> Match | None:
        """`count` tokens behind the latest earlier occurrence of the longest suffix of `least` to `most` tokens."""
        length, source = self._longest(least, most)
        if not length or count < 1:
            return None
        period = len(self) - source
        known = self._tokens(source, min(count, period))
        return Match(length, [known[place % period] for place in range(count)])

    def _longest(self, least: int, most: int) -> tuple[int, int]:
        """Length and the index behind the occurrence; 0, 0 if there is none.

        A longer suffix occurs latest where, or before, a shorter one does: the text is read backwards once.
        """
        size, found = len(self), (0, 0)
        end = _WIDTH * (size - 1)  # an occurrence ends before the text does
        for length in range(least, min(most, size - 1) + 1):
            at = self._last(bytes(self._bytes[_WIDTH * (size - length) :]), end)
            if at < 0:
                break
            found, end = (length, at + length), _WIDTH * (at + length)
        return found

    def _last(self, pattern: bytes, end: int) -> int:
        """The token at which `pattern` begins for the last time before byte `end`; -1: nowhere."""
        at = self._bytes.rfind(pattern, 0, end)
        while at >= 0 and at % _WIDTH:  # across the borders of tokens
            at = self._bytes.rfind(pattern, 0, at + len(pattern) - 1)
        return at // _WIDTH

    def _tokens(self, start: int, count: int) -> list[int]:
        found = array(_CODE)
        found.frombytes(bytes(self._bytes[_WIDTH * start : _WIDTH * (start + count)]))
        return found.tolist()
