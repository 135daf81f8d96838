"""Attention over the paged cache in plain torch: what paged_attention and prefill_attention are compared with."""

from __future__ import annotations

import torch
from torch import Tensor


def attention_reference(
    q: Tensor, kv_layer: Tensor, block_tables: Tensor, query_starts: list[int], kv_lens: list[int],
    window: int | None, k_scale: float, v_scale: float, softmax_scale: float,
) -> Tensor:  # fmt: skip
    """q [T, H, D], rows at query_starts [R+1] -> float32 [T, H, D]; queries at negative positions give zeros."""
    group = q.shape[1] // kv_layer.shape[3]
    out = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
    for row, kv_len in enumerate(kv_lens):
        start, end = query_starts[row], query_starts[row + 1]
        positions = torch.arange(kv_len - (end - start), kv_len, device=q.device)
        real = positions >= 0
        if not bool(real.any()):
            continue
        blocks = block_tables[row, : -(-kv_len // kv_layer.shape[1])].long()
        entries = kv_layer[blocks].flatten(0, 1)[:kv_len].float()  # [kv_len, 2, KV, D]
        keys = entries[:, 0].repeat_interleave(group, dim=1) * k_scale
        values = entries[:, 1].repeat_interleave(group, dim=1) * v_scale
        queries = q[start:end][real].float()
        scores = torch.einsum("qhd,khd->hqk", queries, keys) * softmax_scale
        distance = positions[real][:, None] - torch.arange(kv_len, device=q.device)
        hidden = distance < 0 if window is None else (distance < 0) | (distance >= window)
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        out[start:end][real] = torch.einsum("hqk,khd->qhd", weights, values)
    return out
