"""The forms of captured steps: how many rows, how many drafts, and how many of the rows may draft.

Every row that may draft takes K + 1 places of the target's pass and of attention, whether it drafts or not. From some
hundred tokens on a pass's time grows with its tokens, so a step in which few requests draft should not pay for all:
beside the form in which all rows may draft there is one in which half of them may, for the sizes and K where that is
worth a graph of its own.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from itertools import pairwise
from typing import NamedTuple

import msgspec

LEAST_SPLIT = 32  # rows: a pass over fewer takes nearly the same time for any K
_LEAST_K = 2  # with one draft half of the rows are a quarter of the tokens


class Form(NamedTuple):
    """size: rows, padding included. k: drafts of a row at most. drafting: rows that may draft."""

    size: int
    k: int
    drafting: int

    @property
    def is_split(self) -> bool:
        return self.drafting < self.size

    @property
    def num_tokens(self) -> int:
        """Of the target's pass."""
        return self.size + self.drafting * self.k

    def counts(self) -> list[int]:
        """Drafts by row, as many as can be."""
        return [self.k] * self.drafting + [0] * (self.size - self.drafting)


class StepForms(msgspec.Struct, frozen=True):
    """sizes, draft_counts: what is captured with drafts for all rows, each with each; ascending, empty: nothing is.
    split_sizes, split_counts: of these, what is captured once more with drafts for half of the rows."""

    sizes: list[int] = []
    draft_counts: list[int] = []
    split_sizes: list[int] = []
    split_counts: list[int] = []

    @staticmethod
    def of(sizes: Seq[int], draft_counts: Seq[int], *, split_from: int = LEAST_SPLIT) -> StepForms:
        """Split are powers of two and the largest size, from `split_from` rows on."""
        counts = sorted({0, *draft_counts})
        powers = [size for size in sizes if size & (size - 1) == 0 or size == sizes[-1]]
        return StepForms(
            list(sizes), counts, [size for size in powers if size >= max(2, split_from)],
            [k for k in counts if k >= _LEAST_K],
        )  # fmt: skip

    def all(self) -> list[Form]:
        """The largest first."""
        whole = [Form(size, k, size) for size in self.sizes for k in self.draft_counts]
        split = [Form(size, k, size // 2) for size in self.split_sizes for k in self.split_counts]
        return sorted(whole + split, key=lambda form: (form.num_tokens, form.size), reverse=True)

    def neighbours(self) -> list[tuple[Form, Form]]:
        """Pairs of forms of which the second has more rows or more drafts, and nothing less."""
        pairs: list[tuple[Form, Form]] = []
        for sizes, counts, share in ((self.sizes, self.draft_counts, 1), (self.split_sizes, self.split_counts, 2)):
            table = [[Form(size, k, size // share) for k in counts] for size in sizes]
            for row in table:
                pairs += pairwise(row)
            for column in zip(*table, strict=True):
                pairs += pairwise(column)
        return pairs

    def smallest(self, num_rows: int, k: int, num_drafting: int) -> Form:
        """That holds a step of so many rows, of which so many draft, up to `k` tokens each. More rows or drafts than
        are captured are taken as the most that are."""
        count = next((count for count in self.draft_counts if count >= k), self.draft_counts[-1])
        size = next((size for size in self.sizes if size >= num_rows), self.sizes[-1])
        best = Form(size, count, size)
        if count in self.split_counts:
            for split in self.split_sizes:
                form = Form(split, count, split // 2)
                if split >= num_rows and split // 2 >= num_drafting and form.num_tokens < best.num_tokens:
                    best = form
        return best
