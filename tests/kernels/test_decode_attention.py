"""Hopper's attention of one launch: its memory anywhere, its numbers against the general kernels on such a GPU."""

from __future__ import annotations

import pytest
import torch
from kernels.attention_cases import pool_and_tables

from paceline.kernels.attention_reference import attention_reference
from paceline.kernels.decode_attention import (
    decode_attention,
    fits,
    form_for,
    is_faster,
    num_splits_for,
    quantize_tokens,
    shared_bytes,
)
from paceline.kernels.fp8 import dequantize
from paceline.kernels.rotary_kv import rotary_kv_write_reference_
from paceline.layers.rope import Rope
from paceline.layers.rotary import rotary_table

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
on_hopper = pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("queries", [1, 8, 16, 24, 32, 48, 64])
def test_programs_fit_a_multiprocessor(head_dim: int, queries: int) -> None:
    assert shared_bytes(head_dim, queries, form_for(64, queries)) <= 227 * 1024
    if queries <= 16:  # two of them
        assert shared_bytes(head_dim, queries, form_for(1024, queries)) <= 113 * 1024


@pytest.mark.parametrize(
    ("rows", "longest", "splits"), [(1, 384, 1), (1, 2048, 8), (1, 1 << 17, 16), (8, 2048, 4), (64, 8192, 1)]
)
def test_splits_have_keys_enough_and_programs_fit_the_card(rows: int, longest: int, splits: int) -> None:
    assert num_splits_for(rows, 8, longest) == splits


def test_a_pair_of_a_70b_and_a_1b_takes_it_where_it_was_faster() -> None:
    draft = [is_faster(rows, 8, 64, 4) for rows in (1, 8, 32, 64, 128)]
    plain = [is_faster(rows, 8, 128, 8) for rows in (1, 8, 32, 64, 128)]
    three = [is_faster(rows, 8, 128, 32) for rows in (1, 8, 32, 64, 128)]
    assert all(draft)
    assert plain == [True, True, True, True, False]
    assert three == [False, True, True, False, False]


def test_a_cpu_has_no_such_kernel() -> None:
    layer = torch.zeros((2, 16, 2, 1, 64), dtype=torch.bfloat16)
    assert not fits(torch.zeros((1, 256), dtype=torch.bfloat16), layer, 2, 1, 1)


class Case:
    """Rows at `kv_lens` (0: padding), whose last Q positions are new: their slots hold NaN until they are written."""

    def __init__(self, kv_lens: list[int], query_len: int, heads: int, kv_heads: int, head_dim: int) -> None:
        self.heads, self.kv_heads, self.query_len = heads, kv_heads, query_len
        layer, tables = pool_and_tables([max(n, 1) for n in kv_lens], kv_heads, head_dim, 16, torch.float32, 3)
        positions, slots = [], []
        for row, length in enumerate(kv_lens):
            for position in range(length - query_len, length):
                positions.append(position if length else -1)
                block = int(tables[row, position // 16]) if position >= 0 and length else 0
                slots.append(block * 16 + position % 16 if position >= 0 and length else 0)
                if slots[-1]:
                    layer[block, position % 16] = float("nan")
        self.layer = layer.bfloat16().cuda()
        self.tables, self.kv_lens = tables.cuda(), torch.tensor(kv_lens, dtype=torch.int32).cuda()
        self.positions, self.slots = torch.tensor(positions).cuda(), torch.tensor(slots).cuda()
        self.table = rotary_table(Rope(theta=1e4), head_dim, 4096).bfloat16().cuda()
        tokens = len(kv_lens) * query_len
        self.qkv = torch.randn((tokens, (heads + 2 * kv_heads) * head_dim), device="cuda").bfloat16()

    def run(self, **options: int) -> tuple[torch.Tensor, torch.Tensor]:
        assert fits(self.qkv, self.layer, self.heads, self.kv_heads, self.query_len)
        # A negative position is in nobody's rotary table: the model clamps nothing there, and the kernel reads nothing.
        return decode_attention(
            self.qkv, self.table, self.positions, self.slots, self.layer, self.tables, self.kv_lens, self.heads,
            self.query_len, **options,
        )  # fmt: skip

    def expected(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The attention and the pool, by the references on the CPU."""
        qkv, layer = self.qkv.cpu().clone(), self.layer.cpu().clone()
        rotary_kv_write_reference_(
            qkv, self.table.cpu(), self.positions.cpu(), self.slots.cpu(), layer, self.heads, self.kv_heads
        )
        queries = qkv.view(qkv.shape[0], -1, layer.shape[-1])[:, : self.heads]
        starts = list(range(0, qkv.shape[0] + 1, self.query_len))
        attended = attention_reference(
            queries, layer, self.tables.cpu(), starts, self.kv_lens.tolist(), None, 1.0, 1.0, layer.shape[-1] ** -0.5
        )
        return attended.flatten(1), layer


SHAPES = [(8, 1, 128), (64, 8, 128), (32, 8, 64), (4, 4, 64), (6, 2, 128)]


@on_hopper
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), SHAPES)
@pytest.mark.parametrize("query_len", [1, 2, 3, 4, 6, 8])
@pytest.mark.parametrize("splits", [None, 1, 3])
def test_p16_p31_it_is_the_reference(
    heads: int, kv_heads: int, head_dim: int, query_len: int, splits: int | None
) -> None:
    case = Case([0, query_len, 17, 64, 65, 300, 0, 1000], query_len, heads, kv_heads, head_dim)
    expected, pool = case.expected()
    for _ in range(2):  # again: the counters of splits are back at zero, and what is written is written once more
        got, amax = case.run(**({"num_splits": splits} if splits else {}))
        torch.testing.assert_close(got.float().cpu(), expected.float(), atol=2e-2, rtol=2e-2)
        stored = case.layer.cpu()
        torch.testing.assert_close(stored, pool, atol=2e-2, rtol=2e-2, equal_nan=True)
        parts = got.float().view(got.shape[0], kv_heads, -1).abs().amax(-1)
        torch.testing.assert_close(amax, parts, atol=1e-2, rtol=1e-2)


@on_hopper
def test_what_lies_in_the_null_block_is_dropped() -> None:
    case = Case([40, 40], 2, 8, 1, 128)
    case.slots[1] = 0
    before = case.layer.clone()
    case.run()
    torch.testing.assert_close(case.layer[0], before[0], rtol=0, atol=0, equal_nan=True)
    written = case.layer.flatten(0, 1)[case.slots[[0, 2, 3]]]
    assert written.isfinite().all()


@on_hopper
def test_p31_a_bad_row_stays_bad_and_alone() -> None:
    case = Case([40, 41, 42], 1, 8, 1, 128)
    case.qkv[1, :128] = float("nan")
    got, amax = case.run()
    assert got[1].isnan().any()
    assert amax[1].isnan().all()
    assert got[[0, 2]].isfinite().all()
    assert quantize_tokens(got, amax).scale.isnan().tolist() == [False, True, False]


@on_hopper
def test_quantised_tokens_are_within_e4m3() -> None:
    case = Case([100, 200, 0], 4, 64, 8, 128)
    got, amax = case.run()
    error = dequantize(quantize_tokens(got, amax)) - got.float()
    assert error.abs().max() <= got.float().abs().max() / 16
    assert dequantize(quantize_tokens(got, amax))[8:].abs().max() == 0
