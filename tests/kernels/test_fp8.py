"""Quantisation to FP8: the kernel against its reference, and what the format promises."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.kernels.fp8 import (
    FP8,
    FP8_MAX,
    dequantize,
    quantize_rows,
    quantize_rows_reference,
    quantize_weight,
)


def same(a, b) -> bool:
    return torch.equal(a.data.view(torch.uint8), b.data.view(torch.uint8)) and torch.equal(a.scale, b.scale)


@settings(max_examples=15, deadline=None)
@given(rows=st.integers(1, 5), size=st.integers(1, 70), seed=st.integers(0, 99), exponent=st.integers(-20, 20))
def test_quantize_rows_is_the_reference(rows: int, size: int, seed: int, exponent: int) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.randn(rows, size, generator=torch.Generator().manual_seed(seed)) * 2.0**exponent
    x[0, : size // 2] = 0.0
    assert same(quantize_rows(x.to(device)), quantize_rows_reference(x.to(device)))


def test_bfloat16_rows_with_a_stride(device: torch.device) -> None:
    x = torch.randn(3, 100, device=device).bfloat16()[:, :48]
    assert same(quantize_rows(x), quantize_rows_reference(x))


def test_error_is_within_half_a_step_of_the_format(device: torch.device) -> None:
    x = torch.randn(4, 64, device=device)
    rows = quantize_rows(x)
    step = (x.abs() / 16).clamp_min(rows.scale.unsqueeze(1) * 2**-9)  # 3 mantissa bits; subnormals below 2^-6
    assert ((dequantize(rows) - x).abs() <= step * 1.001).all()
    assert (rows.data.float().abs().amax(1) == FP8_MAX).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_p31_nan_and_infinity_make_the_whole_row_nan_and_no_other(bad: float, device: torch.device) -> None:
    x = torch.randn(3, 33, device=device)
    x[1, 7] = bad
    for rows in (quantize_rows(x), quantize_rows_reference(x)):
        assert dequantize(rows).isnan().all(dim=1).tolist() == [False, True, False]
        assert not dequantize(rows)[[0, 2]].isnan().any()


def test_a_row_of_zeros_stays_zero(device: torch.device) -> None:
    for rows in (quantize_rows(torch.zeros(2, 16, device=device)), quantize_rows_reference(torch.zeros(2, 16))):
        assert dequantize(rows).eq(0).all()
        assert rows.scale.gt(0).all()


def test_weights_are_quantised_in_chunks_that_do_not_show(device: torch.device, monkeypatch) -> None:
    weight = torch.randn(37, 48, device=device).bfloat16()
    whole = quantize_rows_reference(weight)
    monkeypatch.setattr("paceline.kernels.fp8._WEIGHT_CHUNK", 5 * 48 + 1)
    data, scale = quantize_weight(weight)
    assert data.dtype == FP8
    assert torch.equal(data.float(), whole.data.float())
    assert torch.equal(scale, whole.scale)


def test_no_rows(device: torch.device) -> None:
    rows = quantize_rows(torch.empty(0, 16, device=device))
    assert rows.data.shape == (0, 16)
    assert rows.scale.shape == (0,)
