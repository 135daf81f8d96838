"""Builds ForwardBatches for rows whose blocks are scattered over the pool on purpose."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch

from paceline.runner.forward_batch import ForwardBatch


@dataclass(frozen=True)
class Feed:
    """Tokens start..end of a text go into its row; those below `kept_from` are not stored again."""

    row: int
    start: int
    tokens: list[int]
    kept_from: int = 0


class Rows:
    """Block tables of `num_rows` rows, shuffled (or consecutive), all different, never block 0."""

    def __init__(self, num_rows: int, max_len: int, block_size: int, *, shuffled: bool = True, seed: int = 0) -> None:
        self.block_size = block_size
        per_row = -(-max_len // block_size)
        self.num_blocks = 1 + num_rows * per_row
        blocks = list(range(1, self.num_blocks))
        if shuffled:
            random.Random(seed).shuffle(blocks)
        self.tables = [blocks[row * per_row : (row + 1) * per_row] for row in range(num_rows)]

    def slot(self, row: int, position: int) -> int:
        block, offset = divmod(position, self.block_size)
        return self.tables[row][block] * self.block_size + offset

    def batch(self, feeds: list[Feed], logits_indices: list[int] | None = None) -> ForwardBatch:
        """All logits are asked for unless told otherwise. Tables cover what is read and no more."""
        positions = [feed.start + i for feed in feeds for i in range(len(feed.tokens))]
        slots = [
            self.slot(feed.row, p) if p >= feed.kept_from else i % self.block_size
            for feed in feeds
            for i, p in enumerate(range(feed.start, feed.start + len(feed.tokens)))
        ]
        kv_lens = [feed.start + len(feed.tokens) for feed in feeds]
        width = max(-(-length // self.block_size) for length in kv_lens)
        tables = torch.zeros(len(feeds), width, dtype=torch.int64)
        for r, (feed, length) in enumerate(zip(feeds, kv_lens, strict=True)):
            used = self.tables[feed.row][: -(-length // self.block_size)]
            tables[r, : len(used)] = torch.tensor(used)
        return ForwardBatch(
            token_ids=torch.tensor([token for feed in feeds for token in feed.tokens]),
            positions=torch.tensor(positions),
            slot_mapping=torch.tensor(slots),
            block_tables=tables,
            query_lens=[len(feed.tokens) for feed in feeds],
            kv_lens=kv_lens,
            logits_indices=torch.tensor(list(range(len(positions))) if logits_indices is None else logits_indices),
        )
