"""Paged attention against torch's attention in float64, over pools whose every unused slot holds NaN (p31)."""

from __future__ import annotations

import pytest
import torch
from kernels.attention_cases import FP8, dense, pool_and_tables, queries

from paceline.kernels import prefill_attention as prefill
from paceline.kernels.attention_reference import attention_reference
from paceline.kernels.paged_attention import num_splits_for, paged_attention, quantize_tokens
from paceline.kernels.prefill_attention import prefill_attention

pytest.importorskip("triton")

# heads, key-value heads, head_dim, block_size, queries a row, window, dtype of the pool
DECODE = [
    (8, 1, 64, 16, 6, None, torch.float32),
    (4, 4, 16, 4, 1, None, torch.float32),
    (6, 2, 24, 16, 4, 7, torch.float32),
    (4, 2, 96, 32, 2, 40, FP8),
    (7, 1, 64, 1, 8, None, FP8),
    (8, 1, 72, 16, 6, None, torch.float32),
]


@pytest.mark.parametrize(("h", "kv", "d", "block_size", "q_len", "window", "dtype"), DECODE)
@pytest.mark.parametrize("splits", [1, 3])
def test_p31_decode(h, kv, d, block_size, q_len, window, dtype, splits) -> None:
    kv_lens = [q_len, 130, 65, 64]
    layer, tables = pool_and_tables(kv_lens, kv, d, block_size, dtype, seed=h)
    q = queries(len(kv_lens) * q_len, h, kv, d, seed=h)
    out = paged_attention(
        q, layer, tables, torch.tensor(kv_lens, dtype=torch.int32), q_len, window, num_splits=splits
    ).view(q.shape)
    for row, kv_len in enumerate(kv_lens):
        rows = slice(row * q_len, (row + 1) * q_len)
        expected = dense(q[rows], layer, tables[row], kv_len, window)
        torch.testing.assert_close(out[rows].double(), expected, rtol=1e-4, atol=1e-5)


def test_p16_queries_at_negative_positions_give_zeros() -> None:
    """A padding row has kv_len 0; a sequence of one token in a two-token chunk has one real query."""
    layer, tables = pool_and_tables([1, 20], 2, 16, 16, torch.float32, seed=3)
    tables = torch.cat((tables, torch.zeros((1, tables.shape[1]), dtype=torch.int32)))
    q = queries(6, 4, 2, 16, seed=3)
    kv_lens = torch.tensor([1, 20, 0], dtype=torch.int32)
    for splits in (1, 2):
        out = paged_attention(q, layer, tables, kv_lens, 2, num_splits=splits).view(q.shape)
        assert (out[0] == 0).all()
        assert (out[4:] == 0).all()
        torch.testing.assert_close(out[1:2].double(), dense(q[1:2], layer, tables[0], 1))
    data, scales = paged_attention(q, layer, tables, kv_lens, 2, quantize=True)
    assert (data.float()[[0, 4, 5]] == 0).all()
    assert scales.isfinite().all()
    starts = torch.tensor([0, 2, 4, 6], dtype=torch.int32)
    torch.testing.assert_close(prefill_attention(q, layer, tables, starts, kv_lens, 2).view(q.shape), out)


def test_scales_of_an_fp8_pool_and_of_the_output() -> None:
    layer, tables = pool_and_tables([33, 70], 2, 32, 16, FP8, seed=5)
    q = queries(6, 6, 2, 32, seed=5)
    kv_lens = torch.tensor([33, 70], dtype=torch.int32)
    data, scales = paged_attention(q, layer, tables, kv_lens, 3, k_scale=0.5, v_scale=2.0, num_splits=2, quantize=True)
    expected = attention_reference(q, layer, tables, [0, 3, 6], [33, 70], None, 0.5, 2.0, 32**-0.5).flatten(1)
    reference, reference_scales = quantize_tokens(expected)
    torch.testing.assert_close(scales, reference_scales, rtol=1e-5, atol=0)
    assert data.dtype == FP8
    torch.testing.assert_close(data.float() * scales[:, None], expected, rtol=0.07, atol=float(scales.max()))
    assert (data.float() == reference.float()).double().mean() > 0.99  # the rest lies between two float8 numbers


@pytest.mark.parametrize("quantize", [False, True])
def test_p31_a_bad_row_stays_bad_and_its_neighbours_do_not_see_it(quantize: bool) -> None:
    kv_lens = [40, 40, 40]
    layer, tables = pool_and_tables(kv_lens, 2, 16, 16, torch.float32, seed=7)
    q = queries(6, 4, 2, 16, seed=7)
    clean = paged_attention(q, layer, tables, torch.tensor(kv_lens, dtype=torch.int32), 2, quantize=quantize)
    for part in (0, 1):  # a key, a value
        bad = layer.clone()
        bad[tables[1, 0], 3, part] = float("nan")
        out = paged_attention(q, bad, tables, torch.tensor(kv_lens, dtype=torch.int32), 2, quantize=quantize)
        data, expected = (out[0], clean[0]) if quantize else (out, clean)
        assert data[2:4].float().isnan().all()
        assert (data[[0, 1, 4, 5]].float() == expected[[0, 1, 4, 5]].float()).all()


# heads, key-value heads, head_dim, block_size, window, dtype; the tile of a program is 64 rows in float32
PREFILL = [
    (8, 1, 32, 16, None, torch.float32),
    (4, 4, 16, 4, None, torch.float32),
    (6, 2, 24, 16, 9, torch.float32),
    (4, 2, 96, 32, None, FP8),
]


@pytest.mark.parametrize(("h", "kv", "d", "block_size", "window", "dtype"), PREFILL)
def test_p31_prefill_of_ragged_chunks_behind_cached_prefixes(h, kv, d, block_size, window, dtype) -> None:
    query_lens, kv_lens = [1, 0, 70, 17, 5], [50, 0, 70, 130, 5]  # a decode row, padding, new, cached prefix, short
    layer, tables = pool_and_tables(kv_lens, kv, d, block_size, dtype, seed=h + 20)
    q = queries(sum(query_lens), h, kv, d, seed=h + 20)
    starts = torch.tensor([0, *query_lens]).cumsum(0).to(torch.int32)
    out = prefill_attention(
        q, layer, tables, starts, torch.tensor(kv_lens, dtype=torch.int32), max(query_lens), window
    ).view(q.shape)
    for row, kv_len in enumerate(kv_lens):
        rows = slice(int(starts[row]), int(starts[row + 1]))
        if query_lens[row]:
            expected = dense(q[rows], layer, tables[row], kv_len, window)
            torch.testing.assert_close(out[rows].double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tile", [prefill._SMALL, prefill._LARGE, prefill._HUGE])
def test_every_tile_of_prefill_gives_the_same(monkeypatch: pytest.MonkeyPatch, tile: prefill.Tile) -> None:
    """The tiles of bfloat16 in float32: the interpreter does not multiply bfloat16 rightly."""
    monkeypatch.setattr(prefill, "_FLOAT32", tile)
    query_lens, kv_lens = [1, 90, 40], [50, 150, 40]
    layer, tables = pool_and_tables(kv_lens, 1, 32, 16, torch.float32, seed=30)
    q = queries(sum(query_lens), 4, 1, 32, seed=30)
    starts = torch.tensor([0, *query_lens]).cumsum(0).to(torch.int32)
    out = prefill_attention(q, layer, tables, starts, torch.tensor(kv_lens, dtype=torch.int32), 90).view(q.shape)
    for row, kv_len in enumerate(kv_lens):
        rows = slice(int(starts[row]), int(starts[row + 1]))
        torch.testing.assert_close(out[rows].double(), dense(q[rows], layer, tables[row], kv_len), rtol=1e-4, atol=1e-5)


def test_the_reference_is_torchs_attention() -> None:
    layer, tables = pool_and_tables([20, 9], 2, 16, 4, torch.float32, seed=1)
    q = queries(5, 4, 2, 16, seed=1)
    out = attention_reference(q, layer, tables, [0, 3, 5], [20, 9], 6, 1.0, 1.0, 16**-0.5)
    torch.testing.assert_close(out[:3].double(), dense(q[:3], layer, tables[0], 20, 6), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out[3:].double(), dense(q[3:], layer, tables[1], 9, 6), rtol=1e-5, atol=1e-5)


def test_splits_fill_the_card_and_no_more() -> None:
    assert num_splits_for(1, 8, 2048, 64) == 16
    assert num_splits_for(8, 8, 2048, 64) == 4
    assert num_splits_for(128, 8, 2048, 64) == 1
    assert num_splits_for(1, 8, 100, 64) == 2
