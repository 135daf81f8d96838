"""Packed products are made for few numbers of rows, and give every row the bits it has alone."""

from __future__ import annotations

import pytest
import torch

from paceline.layers.linear import Linear, padded_rows, product_sizes


def test_a_server_that_meets_every_number_of_rows_compiles_few_products() -> None:
    sizes = {padded_rows(rows) for rows in range(1, 513)}
    assert len(sizes) <= 52
    assert all(rows <= padded_rows(rows) <= max(1.2 * rows, rows) for rows in range(1, 2049))
    assert all(padded_rows(rows) == rows for rows in range(1, 17))  # decoding alone pays nothing
    assert all(padded_rows(size) == size for size in sizes)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("rows", [17, 30, 65, 130, 257])
def test_padding_is_not_seen(rows: int, with_bias: bool) -> None:
    torch.manual_seed(0)
    linear = Linear(torch.randn(48, 32), torch.randn(48) if with_bias else None)
    linear.pack()
    if not linear.is_packed:
        pytest.skip("no packed products here")
    x = torch.randn(rows, 96)[:, 32:64]  # a view, as layers pass them
    found = linear(x)
    assert found.shape == (rows, 48)
    alone = torch.cat([linear(row[None]) for row in x])
    assert torch.equal(found, alone)


def test_compiling_covers_every_size_that_a_step_can_have() -> None:
    sizes = product_sizes(512)
    assert {padded_rows(rows) for rows in range(1, 513)} == set(sizes)
    assert sizes[0] == 1
    linear = Linear(torch.randn(48, 32), torch.randn(48))
    linear.compile(4)  # not packed: nothing to do
    linear.pack()
    for rows in sizes:
        linear.compile(rows)
    assert linear(torch.ones(1, 32)).shape == (1, 48)
