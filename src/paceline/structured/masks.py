"""GrammarMasks: which tokens a row's grammar allows at every place of a step.

A matcher walks along the answer: over the committed tokens, then over the drafts, one place after the other;
the next step takes it back over what was rejected. It is a cache and nothing more. What it has walked is kept
beside it and compared with the plan, so a row that was preempted, or a step that is replayed, gets the masks
that its plan asks for; and matchers of sequences that are not in a step are dropped with it.

- EOS is legal where the grammar is met and nowhere else; behind an EOS only EOS is.
- A draft that the grammar forbids has no place behind it that could be reached: no limit there.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from paceline.plan import RowPlan
from paceline.structured.constraint import decode_grammar
from paceline.structured.store import CompiledGrammar, GrammarStore

SLOW_SECONDS = 0.5  # of processor time for one place: a grammar that needs longer holds up everybody's step

_Words = np.ndarray[tuple[int], np.dtype[np.int32]]  # 32 tokens each, the lowest bit first
_Rows = np.ndarray[tuple[int, int], np.dtype[np.int32]]


class GrammarMasks:
    """A `layers.restrictions.MaskProvider`. `vocab_size`: width of the masks; `device`: where they are used."""

    def __init__(self, store: GrammarStore, vocab_size: int, device: torch.device) -> None:
        self._store = store
        self._vocab_size = vocab_size
        self._device = device
        self._walks: dict[int, _Walk] = {}

    def masks(self, row: RowPlan, drafts: list[int], first_place: int, num_places: int) -> Tensor:
        walk = self._walk(row)
        words = np.stack([walk.mask(drafts[:place]) for place in range(first_place, first_place + num_places)])
        return _unpack(words, self._vocab_size, self._device)

    def num_legal(self, row: RowPlan, drafts: list[int]) -> int:
        """How many of the drafts the grammar follows, from the first on."""
        walk = self._walk(row)
        return next((place for place in range(len(drafts)) if not walk.go_to(drafts[: place + 1])), len(drafts))

    def keep(self, seq_ids: Iterable[int]) -> None:
        """Drop the matchers of all other sequences."""
        self._walks = {seq_id: self._walks[seq_id] for seq_id in seq_ids if seq_id in self._walks}

    def failure(self, seq_id: int) -> str | None:
        """Why nothing is allowed any more, where that is not the grammar's own doing."""
        walk = self._walks.get(seq_id)
        return walk.failure if walk else None

    def _walk(self, row: RowPlan) -> _Walk:
        """The row's matcher, behind its committed tokens."""
        text = row.sampling.grammar
        assert text is not None
        walk = self._walks.get(row.seq_id)
        if walk is None or walk.grammar != text:
            grammar = decode_grammar(text)
            walk = _Walk(text, self._store.get(grammar.constraint), grammar.end_token_ids)
            self._walks[row.seq_id] = walk
        walk.start_at(row.output_history)
        return walk


class _Walk:
    """A matcher with the tokens that it has accepted, and the masks it gave on the way."""

    def __init__(self, grammar: str, compiled: CompiledGrammar, end_token_ids: Sequence[int]) -> None:
        self.grammar = grammar
        self._end_token_ids = end_token_ids
        self.failure: str | None = None
        self._compiled = compiled  # held: the store may forget it
        self._matcher = compiled.matcher(end_token_ids)
        self._num_words = -(-compiled.vocab_size // 32)
        self._last_word = np.int32((1 << compiled.vocab_size % 32) - 1 if compiled.vocab_size % 32 else -1)
        self._path: list[int] = []
        self._masks: dict[int, _Words] = {}  # by length of the path before it
        self._base = 0  # committed tokens

    def start_at(self, output: list[int]) -> None:
        """Stand behind the committed tokens `output`, drafts accepted before included or taken back."""
        self._base = len(output)
        if self._path[: len(output)] != output and not self._go(output):
            self.failure = "The answer so far is not what its grammar allows; this is a fault of the engine."
        self._masks = {length: mask for length, mask in self._masks.items() if length >= self._base}

    def go_to(self, drafts: list[int]) -> bool:
        """Stand behind the committed tokens and `drafts`; False if the grammar forbids one of these."""
        started = time.thread_time()
        arrived = self._go(self._path[: self._base] + drafts)
        self._watch(time.thread_time() - started)
        return arrived

    def mask(self, drafts: list[int]) -> _Words:
        """The tokens allowed behind the committed ones and `drafts`."""
        length = self._base + len(drafts)
        if self.failure is None and not (length in self._masks and self._path[self._base : length] == drafts):
            if not self.go_to(drafts):
                return self._everything()
            started = time.thread_time()
            self._masks[length] = self._fill()
            self._watch(time.thread_time() - started)
        return self._nothing() if self.failure else self._masks[length]

    def _go(self, path: list[int]) -> bool:
        shared = _shared_length(self._path, path)
        self._take_back(shared)
        for token in path[shared:]:
            if not self._may_ask(token) or not self._matcher.accept_token(token):
                return False
            self._path.append(token)
        return True

    def _may_ask(self, token: int) -> bool:
        """Leave out what is surely illegal: xgrammar writes a warning to the terminal for each such token."""
        if self._matcher.is_terminated() or not 0 <= token < self._compiled.vocab_size:
            return False
        return token not in self._compiled.no_text or token in self._end_token_ids

    def _take_back(self, length: int) -> None:
        if length < len(self._path):
            self._matcher.rollback(len(self._path) - length)
            del self._path[length:]
            self._masks = {before: mask for before, mask in self._masks.items() if before <= length}

    def _fill(self) -> _Words:
        if self._matcher.is_terminated():
            return _bits(self._end_token_ids, self._num_words)
        words = np.zeros((1, self._num_words), dtype=np.int32)
        self._matcher.fill_next_token_bitmask(words)
        words[0, -1] &= self._last_word  # xgrammar sets bits of ids that do not exist as well
        return words.reshape(-1)

    def _watch(self, seconds: float) -> None:
        if seconds > SLOW_SECONDS:
            self.failure = (
                f"The grammar took {seconds:.1f} s to compute which tokens may follow; it was ended so that other "
                "requests are not held up. An ambiguous grammar does that: write it so that a text has one reading."
            )

    def _everything(self) -> _Words:
        return np.full(self._num_words, -1, dtype=np.int32)

    def _nothing(self) -> _Words:
        return np.zeros(self._num_words, dtype=np.int32)


def _shared_length(one: list[int], other: list[int]) -> int:
    """Length of the common beginning; quick where one is a beginning of the other."""
    length = min(len(one), len(other))
    if one[:length] == other[:length]:
        return length
    return next(place for place in range(length) if one[place] != other[place])


def _bits(token_ids: Iterable[int], num_words: int) -> _Words:
    words = np.zeros(num_words, dtype=np.uint32)
    for token in token_ids:
        if token < 32 * num_words:
            words[token // 32] |= np.uint32(1 << token % 32)
    return words.view(np.int32)


def _unpack(words: _Rows, vocab_size: int, device: torch.device) -> Tensor:
    """int32 [P, W] -> bool [P, vocab_size] on the device; what lies past the last word is False."""
    if device.type != "cpu":
        return _unpack_there(torch.from_numpy(words).to(device), vocab_size)
    bits = np.unpackbits(words.view(np.uint8), axis=-1, bitorder="little", count=vocab_size)
    return torch.from_numpy(bits).view(torch.bool)


def _unpack_there(words: Tensor, vocab_size: int) -> Tensor:
    """The same on an accelerator: one bit a token crosses to it, not a byte."""
    bits = words.unsqueeze(-1) >> torch.arange(32, dtype=torch.int32, device=words.device) & 1
    allowed = bits.flatten(1).to(torch.bool)
    missing = vocab_size - allowed.shape[1]
    return torch.nn.functional.pad(allowed, (0, missing)) if missing > 0 else allowed[:, :vocab_size]
