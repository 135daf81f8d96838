"""Rotary + KV write against layers/rotary.py and layers/norm.py, in float32 and into a float8 pool."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from paceline.kernels.rotary_kv import rotary_kv_write_, rotary_kv_write_reference_
from paceline.layers.norm import RMSNorm
from paceline.layers.rope import Rope
from paceline.layers.rotary import rotary_table, rotate_

pytest.importorskip("triton")
FP8 = torch.float8_e4m3fn
BLOCK_SIZE = 4
SLOTS = [9, 4, 2, 17, 30, 11]  # the third lies in the null block
POSITIONS = [3, 0, 7, 40, -1, 12]  # the fifth is padding


def case(h: int, kv: int, d: int, dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(seed)
    wide = torch.randn(len(SLOTS), (h + 2 * kv) * d + 5)
    table = rotary_table(Rope(theta=10000.0), d, 64)
    layer = torch.randn(8, BLOCK_SIZE, 2, kv, d).to(dtype)
    return wide[:, : (h + 2 * kv) * d], table, torch.tensor(POSITIONS), torch.tensor(SLOTS), layer


@pytest.mark.parametrize(("h", "kv", "d"), [(8, 2, 16), (3, 1, 24), (14, 2, 64), (5, 5, 96)])
@pytest.mark.parametrize("normed", [False, True])
def test_agrees_with_the_layers(h: int, kv: int, d: int, normed: bool) -> None:
    qkv, table, positions, slots, layer = case(h, kv, d, torch.float32)
    q_weight, k_weight = (torch.rand(d) + 0.5, torch.rand(d) + 0.5) if normed else (None, None)
    heads = qkv.reshape(len(SLOTS), -1, d).clone()
    if q_weight is not None and k_weight is not None:
        heads[:, :h] = RMSNorm(q_weight, 1e-5)(heads[:, :h])
        heads[:, h : h + kv] = RMSNorm(k_weight, 1e-5)(heads[:, h : h + kv])
    entries = table[positions.clamp(min=0)]
    rotate_(heads[:, : h + kv], entries[:, :1], entries[:, 1:])
    real = [0, 1, 2, 3, 5]
    expected_layer, before = layer.clone(), qkv.clone()
    for row in (0, 1, 3, 5):
        expected_layer.view(-1, 2, kv, d)[SLOTS[row]] = heads[row, h:].view(2, kv, d)

    rotary_kv_write_(qkv, table, positions, slots, layer, h, kv, q_norm=q_weight, k_norm=k_weight, eps=1e-5)
    torch.testing.assert_close(qkv[real].view(len(real), -1, d)[:, :h], heads[real, :h], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(layer, expected_layer, rtol=1e-5, atol=1e-5)
    assert torch.equal(qkv[4], before[4])


def test_p16_padding_writes_nothing_and_the_null_block_is_left_alone() -> None:
    qkv, table, positions, slots, layer = case(4, 2, 16, torch.float32)
    before = layer.clone()
    rotary_kv_write_(qkv, table, positions, slots, layer, 4, 2)
    written = {SLOTS[row] for row in (0, 1, 3, 5)}
    untouched = [slot for slot in range(32) if slot not in written]
    assert torch.equal(layer.view(32, -1)[untouched], before.view(32, -1)[untouched])


def test_p31_a_float8_pool_saturates_and_keeps_nan() -> None:
    qkv, table, positions, slots, layer = case(4, 2, 16, FP8)
    heads = qkv.view(len(SLOTS), -1, 16)
    heads[0, 6, :3] = torch.tensor([float("nan"), float("inf"), 9000.0])  # values of the first token
    heads[1, 4] = float("nan")  # a key of the second
    reference = layer.clone()
    clean = qkv.clone()
    rotary_kv_write_reference_(clean, table, positions, slots, reference, 4, 2, k_scale=0.25, v_scale=2.0)
    rotary_kv_write_(qkv, table, positions, slots, layer, 4, 2, k_scale=0.25, v_scale=2.0)
    torch.testing.assert_close(layer.float(), reference.float(), rtol=0.13, atol=1e-2, equal_nan=True)
    exact = (layer.float() == reference.float()) | layer.float().isnan()
    assert exact.double().mean() > 0.99
    entry = layer.view(-1, 2, 2, 16).float()[SLOTS[0], 1, 0]
    assert entry[:2].isnan().all()
    assert entry[2] == 448.0
    assert layer.view(-1, 2, 2, 16).float()[SLOTS[1], 0, 0].isnan().all()
