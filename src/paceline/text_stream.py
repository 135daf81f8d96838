"""TextStream: token ids in, visible text out, cut exactly where a stop string begins.

Contract
- feed(run) takes the tokens of one step and says how many are kept: all of them, or up to and including
  the token that completes a stop string. Text, token ids and log-probabilities are cut at that token.
- take() returns text that can no longer change: characters still open in UTF-8, and a tail that may
  become a stop string, are held back until they are settled or the sequence ends.
- The pieces joined are what decoding all kept tokens at once gives, cut at the stop.

Ids are decoded in a short window behind the last settled token, because a tokenizer may write a token
differently at the start of a text than inside it; the text that a token adds is the difference. The window grows
with the settled tokens and is cut back now and then, so that a step costs one short decoding.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

_OPEN_CHARACTER = "�"
_WINDOW = 5  # settled tokens that are decoded again as context, at least ...
_WINDOW_LIMIT = 16  # ... and at most


class _Decoder(Protocol):
    def decode(self, token_ids: Seq[int], *, skip_special_tokens: bool = True) -> str: ...


@dataclass(frozen=True, slots=True)
class Kept:
    """How many tokens of a run are kept, and the stop string that ended it, if one did."""

    num_tokens: int
    stop: str | None = None


class TextStream:
    def __init__(
        self,
        decoder: _Decoder,
        *,
        stop: Seq[str] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
        min_tokens: int = 0,
    ) -> None:
        self._decoder = decoder
        self._stop = tuple(stop)
        self._include_stop = include_stop
        self._skip_special = skip_special_tokens
        self._min_tokens = min_tokens
        self._token_ids: list[int] = []
        self._prefix = 0  # the window starts here
        self._context = ""  # text of the window's settled tokens
        self._settled = 0  # tokens whose text is in _text
        self._text = ""  # decoded, whole characters only
        self._taken = 0  # characters given out
        self._ended = False

    def feed(self, run: Seq[int]) -> Kept:
        """Add tokens. Without stop strings the whole run is decoded at once."""
        if not self._stop:
            self._append(run)
            return Kept(len(run))
        for count, token_id in enumerate(run, start=1):
            before = len(self._text)
            self._append([token_id])
            stop = self._find_stop(before) if len(self._token_ids) >= self._min_tokens else None
            if stop is not None:
                return Kept(count, stop)
        return Kept(len(run))

    def take(self) -> str:
        """New text that cannot change any more."""
        end = len(self._text) if self._ended else len(self._text) - self._held_back()
        piece, self._taken = self._text[self._taken : end], max(self._taken, end)
        return piece

    def finish(self) -> str:
        """The rest, open characters included. Nothing may be fed afterwards."""
        if not self._ended:
            self._text += self._pending_text()
            self._ended = True
        return self.take()

    # -- inside ---------------------------------------------------------------------------------------

    def _append(self, run: Seq[int]) -> None:
        self._token_ids.extend(run)
        whole = self._decode(self._token_ids[self._prefix :])
        new = whole[len(self._context) :]
        if new.endswith(_OPEN_CHARACTER):
            return
        self._text += new
        self._settled = len(self._token_ids)
        self._context = whole
        if self._settled - self._prefix > _WINDOW_LIMIT:
            self._prefix = self._settled - _WINDOW
            self._context = self._decode(self._token_ids[self._prefix :])

    def _pending_text(self) -> str:
        """What the tokens after the settled ones add to the settled text."""
        return self._decode(self._token_ids[self._prefix :])[len(self._context) :]

    def _decode(self, token_ids: list[int]) -> str:
        return self._decoder.decode(token_ids, skip_special_tokens=self._skip_special) if token_ids else ""

    def _find_stop(self, before: int) -> str | None:
        """Look for the earliest stop string that ends in the new text; cut the text there."""
        found: tuple[int, str] | None = None
        for stop in self._stop:
            at = self._text.find(stop, max(0, before - len(stop) + 1))
            if at >= 0 and (found is None or at < found[0]):
                found = (at, stop)
        if found is None:
            return None
        at, stop = found
        self._text = self._text[: at + len(stop) if self._include_stop else at]
        self._ended = True
        return stop

    def _held_back(self) -> int:
        """Characters at the end that may be the beginning of a stop string."""
        longest = 0
        for stop in self._stop:
            for length in range(min(len(stop) - 1, len(self._text)), longest, -1):
                if self._text.endswith(stop[:length]):
                    longest = length
                    break
        return longest
