"""Attention over the paged cache, one layer: gather, attend, scatter, as the plan of the forward says.

Contract
- A query at position p of row r sees positions 0..p of row r (the last `window` of them in a sliding layer). Its own
  key and value are in the pool already: `store` comes before `attend`.
- All index work was done once for the forward, in runner/attention_plan.py; nothing here looks at rows.

The query heads that share a key-value head stand as extra query rows, so K and V are never repeated.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class Group:
    """One SDPA: n pieces, padded to q queries and to whole blocks of keys.

    queries       [n·q] indices into the batch's tokens, or None: the batch's tokens in order
    blocks        [n·num_blocks] to gather, or None: the consecutive blocks from first_block on
    kv_len        keys of each piece, as they stand after padding
    masks         by window: [n, 1, G·q, kv_len] to add to the scores, None where every query sees every key
    """

    num_pieces: int
    num_queries: int
    kv_len: int
    queries: Tensor | None
    blocks: Tensor | None
    first_block: int
    masks: dict[int | None, Tensor | None]


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    groups: list[Group]
    scatter: Tensor | None  # [T] indices into the groups' outputs end to end; None: already in order
    heads_per_kv: int


def store(layer: Tensor, slots: Tensor, kv: Tensor) -> None:
    """Write keys and values `kv` [T, 2 * KV * D] at `slots` [T] of one layer of the pool."""
    layer.view(-1, kv.shape[1]).index_copy_(0, slots, kv)


def attend(queries: Tensor, layer: Tensor, plan: AttentionPlan, window: int | None) -> Tensor:
    """queries [T, H, D] over one layer of the pool [blocks, block_size, 2, KV, D] -> [T, H * D]."""
    outputs = [_attend_group(queries, layer, group, plan.heads_per_kv, window) for group in plan.groups]
    if plan.scatter is None:
        return outputs[0]
    return torch.cat(outputs).index_select(0, plan.scatter)


def _attend_group(queries: Tensor, layer: Tensor, group: Group, heads_per_kv: int, window: int | None) -> Tensor:
    n, q, kv_heads, head_dim = group.num_pieces, group.num_queries, layer.shape[3], layer.shape[4]
    if group.queries is not None:
        queries = queries.index_select(0, group.queries)
    grouped_queries = queries.view(n, q, kv_heads, heads_per_kv, head_dim).permute(0, 2, 3, 1, 4)
    keys, values = _keys_values(layer, group)
    attended = functional.scaled_dot_product_attention(
        grouped_queries.reshape(n, kv_heads, heads_per_kv * q, head_dim), keys, values, attn_mask=group.masks[window]
    )
    attended = attended.view(n, kv_heads, heads_per_kv, q, head_dim).permute(0, 3, 1, 2, 4)
    return attended.reshape(n * q, kv_heads * heads_per_kv * head_dim)


def _keys_values(layer: Tensor, group: Group) -> tuple[Tensor, Tensor]:
    """Each [n, KV, kv_len, D]; views of the pool where the blocks are consecutive."""
    if group.blocks is None:
        count = -(-group.kv_len // layer.shape[1])
        chosen = layer[group.first_block : group.first_block + count]
    else:
        chosen = layer.index_select(0, group.blocks)
    positions = chosen.view(group.num_pieces, -1, *layer.shape[2:])[:, : group.kv_len]
    return positions[:, :, 0].transpose(1, 2), positions[:, :, 1].transpose(1, 2)
