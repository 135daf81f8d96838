"""Index and parameter vectors may be views: a column of a matrix is a vector whose entries lie apart.

One column of positions, reshaped, stays a view, and a kernel that takes it for a dense vector reads its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from paceline.kernels.acceptance import accept
from paceline.kernels.paged_attention import paged_attention
from paceline.kernels.philox import uniforms
from paceline.kernels.prefill_attention import prefill_attention
from paceline.kernels.rotary_kv import rotary_kv_write_
from paceline.kernels.sampling import draw_seeded, processed_law

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROWS, VOCAB = 5, 61


def column(values: Tensor) -> Tensor:
    """The same vector as a column of a matrix, as a slice of one column leaves it."""
    matrix = torch.full((len(values), 3), 7, dtype=values.dtype, device=values.device)
    matrix[:, 1] = values
    view = matrix[:, 1:2].reshape(-1)
    assert not view.is_contiguous()
    return view


def parameters() -> dict[str, Tensor]:
    return {
        "temperature": torch.tensor([0.0, 0.7, 1.0, 1.3, 0.5], device=DEVICE),
        "min_p": torch.tensor([0.0, 0.0, 0.1, 0.0, 0.2], device=DEVICE),
        "top_k": torch.tensor([0, 5, 0, 9, 0], dtype=torch.int32, device=DEVICE),
        "top_p": torch.tensor([1.0, 1.0, 0.8, 0.5, 0.9], device=DEVICE),
    }


def law_and_draw(lay: Callable[[Tensor], Tensor]) -> list[Tensor]:
    logits = torch.randn(ROWS, VOCAB, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    given = {name: lay(value) for name, value in parameters().items()}
    law = processed_law(logits, **given)
    seeds, positions = torch.arange(ROWS, device=DEVICE) * 11, torch.arange(ROWS, device=DEVICE) + 4
    drawn = draw_seeded(law, given["temperature"], lay(seeds), lay(positions), 0)
    return [law.probs[1:], law.argmax, law.valid, drawn, uniforms(lay(seeds), lay(positions), 1)]


def decision(lay: Callable[[Tensor], Tensor]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(2)
    probs = torch.rand(ROWS, 3, VOCAB, generator=generator).softmax(-1).to(DEVICE)
    drafts = torch.randint(0, VOCAB, (ROWS, 2), generator=generator).to(DEVICE)
    packed = accept(
        drafts, lay(torch.tensor([0, 1, 2, 2, 1], device=DEVICE)), probs.argmax(-1),
        torch.ones(ROWS, 3, dtype=torch.bool, device=DEVICE), lay(parameters()["temperature"]),
        lay(torch.arange(ROWS, device=DEVICE)), lay(torch.arange(ROWS, device=DEVICE) + 9), probs=probs,
        draft_probs=probs[:, :2].flip(-1).contiguous(),
    )  # fmt: skip
    return [packed]


def attention(lay: Callable[[Tensor], Tensor]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    qkv = torch.randn(ROWS, (4 + 2 * 2) * 16, generator=generator).to(DEVICE)
    table = torch.randn(32, 2, 16, generator=generator).to(DEVICE)
    layer = torch.randn(12, 4, 2, 2, 16, generator=generator).to(DEVICE)
    tables = (torch.arange(2 * ROWS, device=DEVICE).view(ROWS, 2) + 1).to(torch.int32)
    kv_lens = torch.tensor([1, 5, 3, 8, 6], dtype=torch.int32, device=DEVICE)
    positions = (kv_lens - 1).to(torch.int64)
    slots = tables.long().gather(1, (positions // 4)[:, None]).squeeze(1) * 4 + positions % 4
    rotary_kv_write_(qkv, table, lay(positions), lay(slots), layer, 4, 2)
    queries = qkv.view(ROWS, -1, 16)[:, :4]
    starts = torch.arange(ROWS + 1, dtype=torch.int32, device=DEVICE)
    return [
        layer,
        paged_attention(queries, layer, tables, lay(kv_lens), 1),
        prefill_attention(queries, layer, tables, lay(starts), lay(kv_lens), 1),
    ]


@pytest.mark.parametrize("operation", [law_and_draw, decision, attention])
def test_views_give_what_dense_vectors_give(operation: Callable[[Callable[[Tensor], Tensor]], list[Tensor]]) -> None:
    dense, views = operation(lambda values: values), operation(column)
    for expected, got in zip(dense, views, strict=True):
        assert torch.equal(got, expected)
