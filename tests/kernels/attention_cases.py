"""Pools filled with what attention must never read, and rows that lie scattered in them."""

from __future__ import annotations

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn


def pool_and_tables(
    kv_lens: list[int], num_kv_heads: int, head_dim: int, block_size: int, dtype: torch.dtype, seed: int
) -> tuple[Tensor, Tensor]:
    """One layer whose slots hold NaN wherever no row has a position, and the rows' tables, padded with NaN blocks."""
    generator = torch.Generator().manual_seed(seed)
    needed = [-(-length // block_size) for length in kv_lens]
    width, total = max(needed) + 1, sum(needed) + 2
    order = (torch.randperm(total - 1, generator=generator) + 1).tolist()
    poisoned = order.pop()
    tables = torch.full((len(kv_lens), width), poisoned, dtype=torch.int32)
    layer = torch.full((total, block_size, 2, num_kv_heads, head_dim), float("nan"))
    for row, length in enumerate(kv_lens):
        blocks = [order.pop() for _ in range(needed[row])]
        tables[row, : len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
        for position in range(length):
            entry = torch.randn((2, num_kv_heads, head_dim), generator=generator)
            layer[blocks[position // block_size], position % block_size] = entry
    return layer.to(dtype), tables


def queries(num_tokens: int, num_heads: int, num_kv_heads: int, head_dim: int, seed: int) -> Tensor:
    """[T, H, D], a view of fused projection rows, as the model has them."""
    generator = torch.Generator().manual_seed(seed + 1)
    fused = torch.randn((num_tokens, (num_heads + 2 * num_kv_heads) * head_dim), generator=generator)
    return fused.view(num_tokens, -1, head_dim)[:, :num_heads]


def dense(q: Tensor, layer: Tensor, table: Tensor, kv_len: int, window: int | None = None) -> Tensor:
    """One row by torch's own attention, in float64: q [Q, H, D] -> [Q, H, D]; every query at a real position."""
    positions = torch.arange(kv_len)
    entries = layer.double()[table.long()[positions // layer.shape[1]], positions % layer.shape[1]]
    group = q.shape[1] // layer.shape[3]
    keys, values = (entries[:, i].repeat_interleave(group, 1).transpose(0, 1) for i in (0, 1))
    at = torch.arange(kv_len - q.shape[0], kv_len)[:, None]
    seen = positions <= at if window is None else (positions <= at) & (positions > at - window)
    attended = torch.nn.functional.scaled_dot_product_attention(
        q.double().transpose(0, 1), keys, values, attn_mask=seen
    )
    return attended.transpose(0, 1)
