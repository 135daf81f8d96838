"""One thread for products too small to share; the number of threads is put back whatever happens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from paceline.layers.linear import Linear
from paceline.layers.threads import is_small, mean_weight, one_thread


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_one_thread_inside_and_the_number_back_behind() -> None:
    with one_thread(False):
        assert torch.get_num_threads() == 3
    with pytest.raises(KeyError, match="inside"):
        fail_on_one_thread()
    assert torch.get_num_threads() == 3


def fail_on_one_thread() -> None:
    with one_thread(True):
        assert torch.get_num_threads() == 1
        raise KeyError("inside")


def test_a_small_draft_at_few_rows_and_no_target() -> None:
    draft = mean_weight([Linear(torch.zeros(768, 256)), Linear(torch.zeros(256, 256))])
    assert draft == (512 * 256, 4 * 512 * 256)
    assert is_small(*draft, num_rows=16)
    assert not is_small(*draft, num_rows=512)  # a prefill
    assert not is_small(*mean_weight([Linear(torch.zeros(1024, 1024))]), num_rows=1)
    assert is_small(*mean_weight([]), num_rows=1)


def test_a_packed_linear_still_knows_its_size() -> None:
    linear = Linear(torch.randn(64, 32))
    linear.pack()
    assert linear.num_weights == 64 * 32
