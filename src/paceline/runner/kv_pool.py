"""KVPool: the paged key-value cache of one model.

One tensor per layer, [num_blocks, block_size, 2, num_kv_heads, head_dim]: key and value of a token lie side by
side, as they leave the fused projection, so that a step writes both with one indexed copy. An FP8 pool (E4M3) holds
key / k_scale and value / v_scale; the scales are the model's (`LlamaModel.kv_scales`, 1 unless the checkpoint has its
own).

The C++ forward of a CPU (models/native.py) has an order of its own within a block; kernels/cpu_pool.py reads it.

Ownership: the block manager gives blocks to sequences; the pool knows only slots (block * block_size + offset).
Block 0 is the null block: padding is written there and nothing is ever read from it. Stale entries may be read
under a mask (weight exactly 0), so they must be finite: the pool starts zeroed, and a row that failed with NaN has
its slots zeroed, because 0·NaN is NaN.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from paceline.models.architecture import Architecture

NULL_BLOCK = 0


def bytes_per_block(architecture: Architecture, dtype: torch.dtype, block_size: int) -> int:
    """Bytes that one block takes over all layers."""
    return 2 * architecture.kv_size * architecture.num_layers * block_size * dtype.itemsize


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros that take no memory on a CPU until they are written: torch.zeros touches every page, calloc none."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    raw = np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(raw).view(dtype).view(shape)


class KVPool:
    def __init__(
        self, architecture: Architecture, dtype: torch.dtype, device: torch.device, num_blocks: int, block_size: int
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        shape = (num_blocks, block_size, 2, architecture.num_kv_heads, architecture.head_dim)
        self.layers = [_zeros(shape, dtype, device) for _ in range(architecture.num_layers)]

    @property
    def num_bytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers)

    def zero_slots(self, slots: Tensor) -> None:
        """Zero these slots in every layer."""
        for layer in self.layers:
            bits = layer.view(torch.uint8) if layer.element_size() == 1 else layer  # FP8 has no index_fill_ of its own
            bits.view(-1, *bits.shape[2:]).index_fill_(0, slots, 0)
