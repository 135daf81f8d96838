"""The FP8 product: kernel against reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.kernels.fp8 import QuantizedRows, dequantize, quantize_rows_reference, quantize_weight
from paceline.kernels.fp8_linear import fp8_linear, fp8_linear_reference, fp8_product
from paceline.layers.linear import Linear


def operands(rows: int, outputs: int, inputs: int, seed: int = 0):
    random = torch.Generator().manual_seed(seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = quantize_rows_reference(torch.randn(rows, inputs, generator=random).to(device))
    return x, *quantize_weight(torch.randn(outputs, inputs, generator=random).to(device))


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    # wgmma sums FP8 products with fewer bits than float32; the interpreter sums in float32.
    return bool((a.float() - b.float()).norm() <= (1e-2 if a.is_cuda else 1e-5) * b.float().norm())


@settings(max_examples=8, deadline=None)
@given(
    rows=st.integers(1, 20), outputs=st.integers(1, 9), inputs=st.integers(1, 20), bias=st.booleans(),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_product_is_the_reference(rows: int, outputs: int, inputs: int, bias: bool, seed: int) -> None:
    x, weight, scale = operands(rows, 16 * outputs, 16 * inputs, seed)
    offset = torch.randn(16 * outputs, device=weight.device) if bias else None
    got = fp8_linear(x, weight, scale, offset, torch.float32)
    assert close(got, fp8_linear_reference(x, weight, scale, offset, torch.float32))


@pytest.mark.parametrize("rows", [1, 6, 16, 33, 130])
def test_rows_of_every_size_of_tile(rows: int) -> None:
    x, weight, scale = operands(rows, 80, 320)
    assert close(
        fp8_linear(x, weight, scale, None, torch.float32), dequantize(x) @ dequantize(QuantizedRows(weight, scale)).T
    )


def test_the_result_is_rounded_once_to_bfloat16() -> None:
    x, weight, scale = operands(3, 32, 64)
    got = fp8_linear(x, weight, scale)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got, fp8_linear_reference(x, weight, scale), rtol=2**-7, atol=1e-3)


def test_shapes_without_a_kernel_run_the_reference() -> None:
    x, weight, scale = operands(2, 10, 24)
    assert torch.equal(fp8_linear(x, weight, scale), fp8_linear_reference(x, weight, scale))


def test_a_wrong_shape_is_said() -> None:
    x, weight, scale = operands(2, 16, 32)
    with pytest.raises(ValueError, match="32 columns but the weight has 16"):
        fp8_linear(x, weight[:, :16], scale)


def test_p31_a_row_of_nan_stays_nan_and_touches_no_other() -> None:
    x, weight, scale = operands(3, 32, 64)
    poisoned = QuantizedRows(x.data.clone(), x.scale.clone())
    poisoned.scale[1] = float("nan")
    got = fp8_linear(poisoned, weight, scale)
    assert got[1].isnan().all()
    assert torch.equal(got[[0, 2]], fp8_linear(x, weight, scale)[[0, 2]])


def test_no_rows() -> None:
    x, weight, scale = operands(2, 32, 64)
    assert fp8_linear(QuantizedRows(x.data[:0], x.scale[:0]), weight, scale).shape == (0, 32)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: more rows than a Triton kernel takes")
@pytest.mark.parametrize("rows", [129, 512])
def test_many_rows_with_scales_applied_or_owed(rows: int) -> None:
    x, weight, scale = operands(rows, 512, 1024)
    bias = torch.randn(512, device=weight.device)
    assert close(fp8_linear(x, weight, scale, bias), fp8_linear_reference(x, weight, scale, bias))
    owed = fp8_product(x, weight, scale)
    assert not owed.is_scaled
    assert close(owed.value(), fp8_linear_reference(x, weight, scale))


def test_a_linear_leaves_scales_to_its_reader_only_where_the_reader_can_apply_them() -> None:
    x, weight, scale = operands(3, 32, 64)
    for bias, dtype in (
        (None, torch.bfloat16),
        (torch.ones(32, device=scale.device), torch.bfloat16),
        (None, torch.float32),
    ):
        linear = Linear(weight, bias, scale, dtype)
        product = linear.product(x)
        assert product.data.dtype == dtype
        torch.testing.assert_close(product.value(), linear(x).float(), rtol=2**-7, atol=1e-3)
    plain = Linear(torch.randn(8, 4))
    assert torch.equal(plain.product(torch.ones(2, 4)).data, plain(torch.ones(2, 4)))
