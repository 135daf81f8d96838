"""Residual + norm and silu · up, quantised and not: kernels against references, and against torch's own."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from paceline.kernels.activation import silu_mul, silu_mul_quant, silu_mul_quant_reference, silu_mul_reference
from paceline.kernels.fp8 import dequantize
from paceline.kernels.norm_quant import (
    add_rms_norm,
    add_rms_norm_quant,
    add_rms_norm_quant_reference,
    add_rms_norm_reference,
)
from paceline.kernels.product import Product

EPS = 1e-5
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def rows_of(seed: int, *shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=random).to(DEVICE, dtype) for shape in shapes]


def one_step_apart(a, b) -> bool:
    """Equal up to rounding at the edge of an E4M3 step: sums of different order may fall on two sides of it."""
    difference = (dequantize(a) - dequantize(b)).abs()
    return bool((difference <= dequantize(b).abs() / 7 + b.scale.unsqueeze(1) * 2**-8).all()) and bool(
        (difference > 1e-5 * b.scale.unsqueeze(1) * 448).float().mean() < 0.02
    )


@settings(max_examples=12, deadline=None)
@given(rows=st.integers(1, 4), size=st.integers(2, 90), seed=st.integers(0, 99), has_residual=st.booleans())
def test_norms_are_the_reference(rows: int, size: int, seed: int, has_residual: bool) -> None:
    x, residual, weight = rows_of(seed, (rows, size), (rows, size), (size,))
    expected_residual = residual + x if has_residual else x
    for quantised in (False, True):
        mine, its = (residual.clone(), residual.clone()) if has_residual else (None, None)
        if quantised:
            got, returned = add_rms_norm_quant(x, mine, weight, EPS)
            expected, _ = add_rms_norm_quant_reference(x, its, weight, EPS)
            assert one_step_apart(got, expected)
            assert torch.equal(returned, expected_residual)
            assert returned is (x if mine is None else mine)
        else:
            got = add_rms_norm(x, mine, weight, EPS)
            torch.testing.assert_close(got, add_rms_norm_reference(x, its, weight, EPS), rtol=1e-5, atol=1e-5)
        if has_residual:
            assert torch.equal(mine, expected_residual)
            assert torch.equal(its, expected_residual)


def test_norm_is_torchs() -> None:
    x, weight = rows_of(1, (3, 64), (64,))
    expected = torch.rms_norm(x, (64,), weight, EPS)
    torch.testing.assert_close(add_rms_norm(x, None, weight, EPS), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(add_rms_norm_reference(x, None, weight, EPS), expected, rtol=1e-5, atol=1e-5)


def test_bfloat16_residual_is_rounded_before_the_norm() -> None:
    x, residual, weight = rows_of(2, (4, 96), (4, 96), (96,), dtype=torch.bfloat16)
    mine, its = residual.clone(), residual.clone()
    got = add_rms_norm(x, mine, weight, EPS)
    expected = add_rms_norm_reference(x, its, weight, EPS)
    assert torch.equal(mine, residual + x)
    assert torch.equal(its, residual + x)
    torch.testing.assert_close(got, expected, rtol=2**-7, atol=1e-6)
    assert one_step_apart(
        add_rms_norm_quant(x, residual.clone(), weight, EPS)[0],
        add_rms_norm_quant_reference(x, residual.clone(), weight, EPS)[0],
    )


@settings(max_examples=12, deadline=None)
@given(rows=st.integers(1, 4), size=st.integers(1, 90), seed=st.integers(0, 99))
def test_silu_mul_is_the_reference(rows: int, size: int, seed: int) -> None:
    (gate_up,) = rows_of(seed, (rows, 2 * size))
    expected = functional.silu(gate_up[:, :size]) * gate_up[:, size:]
    torch.testing.assert_close(silu_mul(gate_up), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(silu_mul_reference(gate_up), expected, rtol=1e-5, atol=1e-6)
    assert one_step_apart(silu_mul_quant(gate_up), silu_mul_quant_reference(gate_up))


def test_silu_mul_takes_rows_with_a_stride_and_bfloat16() -> None:
    (wide,) = rows_of(3, (3, 100), dtype=torch.bfloat16)
    gate_up = wide[:, :60]
    torch.testing.assert_close(silu_mul(gate_up), silu_mul_reference(gate_up), rtol=2**-7, atol=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_p31_nan_and_infinity_spoil_their_row_only(bad: float) -> None:
    x, residual, weight = rows_of(4, (3, 40), (3, 40), (40,))
    x[1, 5] = bad
    normed = dequantize(add_rms_norm_quant(x, residual.clone(), weight, EPS)[0])
    activated = dequantize(silu_mul_quant(x))
    for result in (normed, activated):
        assert result.isnan().all(dim=1).tolist() == [False, True, False]
        assert not result[[0, 2]].isnan().any()
    assert add_rms_norm(x, residual.clone(), weight, EPS)[1].isnan().any()
    assert not add_rms_norm(x, residual.clone(), weight, EPS)[[0, 2]].isnan().any()


def test_scales_that_a_product_owes_are_applied_by_its_reader() -> None:
    x, residual, weight, row_scale, column_scale = rows_of(5, (3, 64), (3, 64), (64,), (3,), (64,))
    product, scaled = Product(x, row_scale, column_scale), x * (row_scale.unsqueeze(1) * column_scale)
    mine, its = residual.clone(), residual.clone()
    torch.testing.assert_close(add_rms_norm(product, mine, weight, EPS), add_rms_norm(scaled, its, weight, EPS))
    torch.testing.assert_close(mine, its)
    mine, its = residual.clone(), residual.clone()
    got, _ = add_rms_norm_quant(product, mine, weight, EPS)
    assert one_step_apart(got, add_rms_norm_quant_reference(product, its, weight, EPS)[0])
    torch.testing.assert_close(silu_mul(product), silu_mul(scaled))
    assert one_step_apart(silu_mul_quant(product), silu_mul_quant_reference(product))


def test_a_product_that_owes_its_scales_cannot_be_the_residual() -> None:
    x, weight, row_scale, column_scale = rows_of(6, (3, 64), (64,), (3,), (64,))
    with pytest.raises(ValueError, match="needs a residual"):
        add_rms_norm(Product(x, row_scale, column_scale), None, weight, EPS)
