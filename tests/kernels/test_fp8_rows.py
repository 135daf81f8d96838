"""The Hopper product of few rows: its plan anywhere, its numbers where there is such a GPU."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.kernels.fp8 import FP8, QuantizedRows
from paceline.kernels.fp8_linear import fp8_linear_reference
from paceline.kernels.fp8_rows import MAX_ROWS, fits, fp8_rows, plan

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
on_hopper = pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")


@given(outputs=st.integers(1, 8000), pieces=st.integers(4, 300), box=st.integers(1, MAX_ROWS // 8))
def test_every_output_has_a_program_and_shares_are_even(outputs: int, pieces: int, box: int) -> None:
    outputs, inputs = outputs * 16, pieces * 128
    how = plan(outputs, inputs, 8 * box)
    tiles = -(-outputs // how.tile)
    turns = -(-tiles // how.programs)
    assert how.programs <= min(132, -(-tiles // how.cluster) * how.cluster)
    assert how.programs % how.cluster == 0
    assert how.programs * turns >= tiles
    assert how.tile % 8 == 0
    assert 64 * how.groups >= 8 * box
    assert how.tile // 2 * how.groups <= 288  # sums that the registers of a multiprocessor hold beside the rest
    assert inputs % (128 * how.atoms) == 0
    assert turns * how.tile <= 1.1 * max(8, outputs / 132) + 8  # no program has much more than its share


@pytest.mark.parametrize("outputs", [10240, 8192, 57344, 3072, 2048, 16384, 6144, 4096, 28672])
def test_shares_of_the_llama_shapes_are_within_four_per_cent(outputs: int) -> None:
    how = plan(outputs, 8192)
    turns = -(-outputs // (how.tile * how.programs))
    assert turns * how.tile * 132 <= 1.04 * outputs


def test_a_cpu_has_no_such_kernel() -> None:
    assert not fits(torch.zeros(1, 1024).to(FP8), torch.zeros(16, 1024).to(FP8))


def operands(rows: int, outputs: int, inputs: int):
    data = [(torch.randint(0, 256, shape, dtype=torch.uint8, device="cuda") & 0xBF).view(FP8)
            for shape in ((rows, inputs), (outputs, inputs))]  # fmt: skip
    scales = [torch.rand(count, device="cuda") for count in (rows, outputs)]
    return QuantizedRows(data[0], scales[0]), data[1], scales[1]


@on_hopper
@pytest.mark.parametrize(("outputs", "inputs"), [(10240, 8192), (2048, 8192), (576, 1536), (200, 640), (4096, 1792)])
@pytest.mark.parametrize("rows", [1, 8, 13, 64])
def test_product_is_the_reference(rows: int, outputs: int, inputs: int) -> None:
    x, weight, scale = operands(rows, outputs, inputs)
    assert fits(x.data, weight)
    bias = torch.randn(outputs, device="cuda") if rows == 8 else None
    for dtype in (torch.float32, torch.bfloat16):
        expected = fp8_linear_reference(x, weight, scale, bias, torch.float32)
        got = fp8_rows(x, weight, scale, bias, dtype).float()
        assert (got - expected).norm() <= 5e-3 * expected.norm()


@on_hopper
@pytest.mark.parametrize(("outputs", "inputs"), [(10240, 1024), (57344, 512), (9600, 1792)])
@pytest.mark.parametrize("rows", [65, 96, 130, 160, MAX_ROWS])
def test_product_of_several_warpgroups_is_the_reference(rows: int, outputs: int, inputs: int) -> None:
    x, weight, scale = operands(rows, outputs, inputs)
    assert fits(x.data, weight)
    bias = torch.randn(outputs, device="cuda") if rows == 96 else None
    expected = fp8_linear_reference(x, weight, scale, bias, torch.float32)
    got = fp8_rows(x, weight, scale, bias, torch.bfloat16).float()
    assert (got - expected).norm() <= 5e-3 * expected.norm()
    worst = (got - expected).norm(dim=1) / expected.norm(dim=1)
    assert worst.max() <= 1e-2  # no row is left out


@on_hopper
@pytest.mark.parametrize(("outputs", "inputs"), [(2048, 2048), (8192, 8192), (16384, 2048)])
@pytest.mark.parametrize(("most", "fewer"), [(16, (1, 6, 9)), (64, (24, 40))])
def test_p10_a_row_has_the_same_bits_in_any_batch_of_its_class(
    outputs: int, inputs: int, most: int, fewer: tuple[int, ...]
) -> None:
    x, weight, scale = operands(most, outputs, inputs)
    whole = fp8_rows(x, weight, scale, None, torch.bfloat16)
    for rows in fewer:
        part = QuantizedRows(x.data[:rows], x.scale[:rows])
        assert torch.equal(fp8_rows(part, weight, scale, None, torch.bfloat16), whole[:rows])


@on_hopper
def test_p31_a_row_of_nan_touches_no_other() -> None:
    x, weight, scale = operands(6, 1024, 1024)
    clean = fp8_rows(x, weight, scale, None, torch.bfloat16)
    x.scale[2] = float("nan")
    x.data.view(torch.uint8)[2] = 0x7F
    got = fp8_rows(x, weight, scale, None, torch.bfloat16)
    assert got.isnan().all(dim=1).tolist() == [False, False, True, False, False, False]
    assert torch.equal(got[[0, 1, 3, 4, 5]], clean[[0, 1, 3, 4, 5]])


@on_hopper
def test_products_behind_each_other_in_a_graph_do_not_run_ahead() -> None:
    """Dependent launches overlap; what a product reads must be what the one before it wrote."""
    x, weight, _ = operands(8, 1024, 1024)
    weights = [
        (torch.randint(0, 256, weight.shape, dtype=torch.uint8, device="cuda") & 0xBF).view(FP8) for _ in range(6)
    ]
    scale = torch.full((1024,), 1e-3, device="cuda")

    def chain(wait: bool) -> torch.Tensor:
        rows = x
        for w in weights:
            out = fp8_rows(rows, w, scale, None, torch.float32)
            if wait:
                torch.cuda.synchronize()
            rows = QuantizedRows(out.to(FP8), x.scale)
        return out

    expected = chain(wait=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = chain(wait=False)
    for _ in range(3):
        graph.replay()
    assert torch.equal(out, expected)
