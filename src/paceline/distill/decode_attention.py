"""Attention of one new token a row over a dense cache, and the write of its key and value, in one launch.

All rows stand at the same position, so the cache is [B, kv_heads, L, D] with one shared length. One
program serves one (row, kv head): it streams that head's keys and values once for all query heads of
the group. The length is read from device memory, so that one CUDA graph serves every position.
`reference` is the same in plain torch; it runs where there is no Triton.
"""

# mypy: disable-error-code="import-not-found,import-untyped,no-untyped-def,untyped-decorator"

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU build of torch comes without Triton
    triton = None


def reference(
    queries: Tensor, new_keys: Tensor, new_values: Tensor, keys: Tensor, values: Tensor, length: Tensor
) -> Tensor:
    """queries [B, heads, D], new_keys and new_values [B, kv_heads, D], cache [B, kv_heads, L, D],
    length [1]: how many positions the cache holds. Appends, attends, returns [B, heads, D]."""
    keys.index_copy_(2, length, new_keys.unsqueeze(2))
    values.index_copy_(2, length, new_values.unsqueeze(2))
    seen = torch.arange(keys.shape[2], device=keys.device) <= length
    out = F.scaled_dot_product_attention(queries.unsqueeze(2), keys, values, attn_mask=seen[None], enable_gqa=True)
    return out.squeeze(2)


def append_and_attend(
    queries: Tensor, new_keys: Tensor, new_values: Tensor, keys: Tensor, values: Tensor, length: Tensor
) -> Tensor:
    """As `reference`, by the kernel. Inputs contiguous; D a power of two, at most 16 query heads a kv head."""
    batch, heads, dim = queries.shape
    kv_heads = keys.shape[1]
    out = torch.empty_like(queries)
    _kernel[(batch * kv_heads,)](
        queries, new_keys, new_values, keys, values, out, length,
        keys.shape[2] * dim, dim**-0.5, GROUP=heads // kv_heads, DIM=dim, BLOCK=64, num_warps=4, num_stages=3,
    )  # fmt: skip
    return out


if triton is not None:

    @triton.jit
    def _kernel(
        queries, new_keys, new_values, keys, values, out, length_pointer,
        head_stride, scale, GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr,
    ) -> None:  # fmt: skip
        program = tl.program_id(0).to(tl.int64)
        length = tl.load(length_pointer).to(tl.int32)
        rows = tl.arange(0, 16)  # the matrix unit wants 16 rows; GROUP of them are real
        dims = tl.arange(0, DIM)
        columns = tl.arange(0, BLOCK)
        query_offsets = program * GROUP * DIM + rows[:, None] * DIM + dims[None, :]
        query = tl.load(queries + query_offsets, mask=rows[:, None] < GROUP, other=0.0)
        new_key = tl.load(new_keys + program * DIM + dims)
        new_value = tl.load(new_values + program * DIM + dims)
        cache = program * head_stride
        tl.store(keys + cache + length * DIM + dims, new_key)
        tl.store(values + cache + length * DIM + dims, new_value)

        top = tl.sum(query.to(tl.float32) * new_key.to(tl.float32)[None, :], axis=1) * scale  # [16]
        total = tl.full([16], 1.0, tl.float32)
        mixed = tl.zeros([16, DIM], tl.float32) + new_value.to(tl.float32)[None, :]
        for start in range(0, length, BLOCK):
            seen = start + columns < length
            offsets = cache + (start + columns)[:, None] * DIM + dims[None, :]
            key = tl.load(keys + offsets, mask=seen[:, None], other=0.0)
            score = tl.dot(query, tl.trans(key)) * scale  # [16, BLOCK]
            score = tl.where(seen[None, :], score, float("-inf"))
            new_top = tl.maximum(top, tl.max(score, axis=1))
            weight = tl.exp(score - new_top[:, None])
            shrink = tl.exp(top - new_top)
            value = tl.load(values + offsets, mask=seen[:, None], other=0.0)
            mixed = mixed * shrink[:, None] + tl.dot(weight.to(value.dtype), value)
            total = total * shrink + tl.sum(weight, axis=1)
            top = new_top
        mixed = mixed / total[:, None]
        tl.store(out + query_offsets, mixed.to(out.dtype.element_ty), mask=rows[:, None] < GROUP)


def best_for(device: torch.device) -> Any:
    """The kernel on a GPU with Triton, the reference elsewhere."""
    return append_and_attend if triton is not None and device.type == "cuda" else reference
