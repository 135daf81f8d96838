"""What lies where in a pool that the C++ forward fills (cpu/pool_layer.h): keys in panels, values token by token.

A layer is a tensor [blocks, block_size, 2, kv_heads, head_dim] by size alone. A block has the keys of each head,
[block_size / w, head_dim, w] with w = 16, or less in a smaller block, and behind them the values of each head,
[block_size, head_dim].
"""

from __future__ import annotations

import torch
from torch import Tensor

_PANEL = 16  # tokens


def keys(layer: Tensor) -> Tensor:
    """A view: [blocks, kv_heads, block_size / w, head_dim, w]."""
    _, block_size, _, heads, dim = layer.shape
    width = min(block_size, _PANEL)
    return layer.view(len(layer), 2, heads, block_size // width, dim, width)[:, 0]


def values(layer: Tensor) -> Tensor:
    """A view: [blocks, kv_heads, block_size, head_dim]."""
    _, block_size, _, heads, dim = layer.shape
    return layer.view(len(layer), 2, heads, block_size, dim)[:, 1]


def by_token(layer: Tensor) -> Tensor:
    """A copy of a layer as its shape says: [blocks, block_size, 2, kv_heads, head_dim]."""
    found = keys(layer).transpose(3, 4).flatten(2, 3), values(layer)
    return torch.stack(found, dim=1).permute(0, 3, 1, 2, 4).contiguous()


def zero_slots(layers: list[Tensor], slots: Tensor) -> None:
    """Zero these slots [n] in every layer."""
    for layer in layers:
        size, width = layer.shape[1], min(layer.shape[1], _PANEL)
        blocks, places = slots // size, slots % size
        values(layer)[blocks, :, places] = 0
        keys(layer)[blocks, :, places // width, :, places % width] = 0
