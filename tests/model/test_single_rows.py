"""The fused forward over rows of several tokens with rows of one behind them: each as if it were alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from model.fp8_checkpoints import make_fp8
from model.tiny import make_tiny
from model.torch_forward import torch_forward
from torch import Tensor

from paceline.config import ModelConfig
from paceline.models.fused import PagedBatch
from paceline.runner.model_runner import ModelRunner

LENGTH, SIZE, BLOCKS = 3, 4, 4  # tokens of a long row, of a block, blocks of a row


def batch(lengths: list[int], starts: list[int], **fields: int) -> PagedBatch:
    """Rows of so many tokens from these positions on, each in blocks of its own."""
    tables = 1 + torch.arange(len(lengths) * BLOCKS, dtype=torch.int32).view(-1, BLOCKS)
    positions = [torch.arange(start, start + length) for start, length in zip(starts, lengths, strict=True)]
    slots = [table[at // SIZE].long() * SIZE + at % SIZE for table, at in zip(tables, positions, strict=True)]
    return PagedBatch(
        token_ids=torch.cat([(7 * at + 3 * row) % 90 + 3 for row, at in enumerate(positions)]),
        positions=torch.cat(positions),
        slots=torch.cat(slots),
        block_tables=tables,
        kv_lens=torch.tensor([start + length for start, length in zip(starts, lengths, strict=True)]).int(),
        max_query_len=max(lengths),
        **fields,
    )


def part(whole: PagedBatch, rows: slice, tokens: slice, length: int) -> PagedBatch:
    return PagedBatch(
        token_ids=whole.token_ids[tokens], positions=whole.positions[tokens], slots=whole.slots[tokens],
        block_tables=whole.block_tables[rows], kv_lens=whole.kv_lens[rows], max_query_len=length,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def without_native_forward() -> Iterator[None]:
    with torch_forward():
        yield


@pytest.mark.parametrize("form", ["float32", "compressed-dynamic"])
def test_rows_of_one_token_behind_longer_ones(tmp_path: Path, form: str) -> None:
    if form == "float32":
        runner = ModelRunner.load(ModelConfig(path=make_tiny("llama3", tmp_path), name="tiny", max_model_len=64))
    else:
        path = make_fp8(form, tmp_path, "llama_bias")[0]
        runner = ModelRunner.load(ModelConfig(path=path, name="tiny", max_model_len=64), fp8_products=True)
    runner.use_fused = True
    runner.allocate_kv(1 + 5 * BLOCKS, SIZE)
    whole = batch([LENGTH, LENGTH, 1, 1, 1], [4, 0, 9, 5, 0], num_single=3)

    def run(each: PagedBatch) -> Tensor:
        for layer in runner.pool.layers:  # what came before: the same for all
            layer.copy_(torch.linspace(-1, 1, layer.numel()).view_as(layer).to(layer.dtype))
        return runner.forward_paged(each)

    together = run(whole)
    alone = [run(part(whole, slice(2), slice(6), LENGTH)), run(part(whole, slice(2, None), slice(6, None), 1))]
    assert together.isfinite().all()
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-5, atol=1e-6)
