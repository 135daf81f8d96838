"""Attention over the paged cache, one layer: gather, attend, scatter, as the plan of the forward says.

Contract
- A query at position p of row r sees positions 0..p of row r (the last `window` of them in a sliding layer). Its own
  key and value are in the pool already: `store` comes before `attend`.
- All index work was done once for the forward, in runner/attention_plan.py; nothing here looks at rows.

The query heads that share a key-value head stand as extra query rows, so K and V are never repeated. They are put in
that order by one gather of [D] vectors out of the fused projection, and back by another.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class Group:
    """One SDPA: n pieces of rows. Its query rows are G heads times q queries, padded; its keys padded to kv_len.

    blocks        [n·num_blocks] to gather, or None: the consecutive blocks from first_block on
    masks         by window: [n, 1, num_query_rows, kv_len] to add to the scores
    """

    num_pieces: int
    num_query_rows: int
    kv_len: int
    blocks: Tensor | None
    first_block: int
    masks: dict[int | None, Tensor]


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    groups: list[Group]
    gather: Tensor  # [sum of n·KV·num_query_rows] vectors of the projection [T·(H + 2·KV), D], group after group
    scatter: Tensor  # [T·H] vectors of the groups' outputs, each [n, num_query_rows, KV, D], end to end


def store(layer: Tensor, slots: Tensor, kv: Tensor) -> None:
    """Write keys and values `kv` [T, 2 * KV * D] at `slots` [T] of one layer of the pool."""
    layer.view(-1, kv.shape[1]).index_copy_(0, slots, kv)


def attend(heads: Tensor, layer: Tensor, plan: AttentionPlan, window: int | None) -> Tensor:
    """heads [T, H + 2 * KV, D] over one layer of the pool [blocks, block_size, 2, KV, D] -> [T, H * D]."""
    num_tokens, head_dim = heads.shape[0], heads.shape[2]
    queries = heads.view(-1, head_dim).index_select(0, plan.gather)
    outputs, start = [], 0
    for group in plan.groups:
        end = start + group.num_pieces * layer.shape[3] * group.num_query_rows
        outputs.append(_attend_group(queries[start:end], layer, group, window))
        start = end
    attended = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return attended.index_select(0, plan.scatter).view(num_tokens, -1)


def _attend_group(queries: Tensor, layer: Tensor, group: Group, window: int | None) -> Tensor:
    """queries [n * KV * num_query_rows, D] -> [n * num_query_rows * KV, D]"""
    kv_heads, head_dim = layer.shape[3:]
    keys, values = _keys_values(layer, group)
    attended = functional.scaled_dot_product_attention(
        queries.view(group.num_pieces, kv_heads, -1, head_dim), keys, values, attn_mask=group.masks[window]
    )
    return attended.transpose(1, 2).reshape(-1, head_dim)


def _keys_values(layer: Tensor, group: Group) -> tuple[Tensor, Tensor]:
    """Each [n, KV, kv_len, D]; views of the pool where the blocks are consecutive."""
    if group.blocks is None:
        chosen = layer[group.first_block : group.first_block + group.kv_len // layer.shape[1]]
    else:
        chosen = layer.index_select(0, group.blocks)
    positions = chosen.view(group.num_pieces, group.kv_len, *layer.shape[2:])
    return positions[:, :, 0].transpose(1, 2), positions[:, :, 1].transpose(1, 2)
