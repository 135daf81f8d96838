"""A planned cache of gigabytes must not be resident before it is used."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import torch
from model.tiny import make_tiny

from paceline.models.architecture import read_architecture
from paceline.runner.kv_pool import KVPool, bytes_per_block


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_unused_pool_takes_no_memory_and_is_zero(tmp_path: Path, dtype: torch.dtype) -> None:
    architecture = read_architecture(make_tiny("llama", tmp_path))
    num_blocks = (1 << 30) // bytes_per_block(architecture, dtype, 16)
    before = psutil.Process().memory_info().rss
    pool = KVPool(architecture, dtype, torch.device("cpu"), num_blocks, 16)
    assert pool.num_bytes > 0.99 * (1 << 30)
    assert psutil.Process().memory_info().rss - before < 64 << 20
    layer = pool.layers[1]
    assert layer.dtype == dtype
    assert not layer[num_blocks - 1].any()
    layer[3, 2] = 1.5
    assert layer[3].sum() == layer[0, 0].numel() * 1.5
