"""ForwardBatch: what one model reads in one forward pass. Rows of any lengths, laid end to end.

T tokens of R rows; row r owns query_lens[r] consecutive tokens, the last of which sees
kv_lens[r] positions (itself included). A token at position p sees positions 0..p of its own row.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardBatch:
    token_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    slot_mapping: Tensor  # [T] int64: block * block_size + offset; slots of block 0 (the null block) are never read
    block_tables: Tensor  # [R, max_blocks] int64, padded with 0
    query_lens: list[int]  # [R], each >= 1
    kv_lens: list[int]  # [R], kv_lens[r] >= query_lens[r]
    logits_indices: Tensor  # [L] int64: the tokens whose logits are wanted
