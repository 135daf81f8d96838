"""What one row computes or stores never shows in another: NaN, stale entries, and the last bit."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from model.rows import Feed, Rows
from model.tiny import make_tiny
from torch import Tensor

from paceline.config import ModelConfig
from paceline.kernels.cpu_pool import by_token
from paceline.runner.attention_plan import padded_keys
from paceline.runner.model_runner import ModelRunner
from paceline.runner.query_order import padded_rows

POISON = 100  # a token whose embedding is NaN
BLOCK = 4


@pytest.fixture(scope="module", params=["llama3", "smollm2", "mistral"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(request.param, tmp_path_factory.mktemp(request.param), max_position_embeddings=1024)


def load(path: Path, rows: Rows) -> ModelRunner:
    runner = ModelRunner.load(ModelConfig(path=path, name="tiny", max_model_len=1024))
    runner.model.embedding[POISON] = float("nan")
    runner.allocate_kv(rows.num_blocks, rows.block_size)
    return runner


def text(length: int, seed: int) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(POISON) for _ in range(length)]


def test_nan_fails_its_row_and_touches_no_neighbour(path: Path) -> None:
    rows = Rows(3, 32, BLOCK)
    alone, mixed = load(path, rows), load(path, rows)
    first, last = Feed(0, 0, text(7, 0)), Feed(2, 0, text(9, 2))
    output = mixed.forward(rows.batch([first, Feed(1, 0, [5, POISON, 6, 7]), last]))
    assert output.finite.tolist() == [True, False, True]
    expected = [alone.forward(rows.batch([feed])).logits for feed in (first, last)]
    torch.testing.assert_close(output.logits[:7], expected[0])
    torch.testing.assert_close(output.logits[-9:], expected[1])


def test_nan_is_seen_where_no_logits_are_asked_for(path: Path) -> None:
    rows = Rows(2, 32, BLOCK)
    output = load(path, rows).forward(rows.batch([Feed(0, 0, [1, 2, 3]), Feed(1, 0, [POISON, 4])], logits_indices=[2]))
    assert output.logits.shape == (1, 101)
    assert output.finite.tolist() == [True, False]


def test_nan_in_the_null_block_is_never_read(path: Path) -> None:
    rows = Rows(2, 32, BLOCK)
    runner, clean = load(path, rows), load(path, rows)
    runner.forward(rows.batch([Feed(1, 0, [POISON] * BLOCK, kept_from=BLOCK)]))
    for layer in runner.pool.layers:
        layer[0].fill_(float("nan"))  # whether or not the forward writes there
    feeds = [Feed(0, 0, text(17, 0)), Feed(1, 0, text(2, 1))]
    torch.testing.assert_close(runner.forward(rows.batch(feeds)).logits, clean.forward(rows.batch(feeds)).logits)


def test_zeroed_slots_of_a_failed_row_serve_again(path: Path) -> None:
    rows = Rows(2, 32, BLOCK)
    runner, clean = load(path, rows), load(path, rows)
    runner.forward(rows.batch([Feed(0, 0, [POISON] * 8)]))
    runner.zero_slots(torch.tensor([rows.slot(0, position) for position in range(8)]))
    feeds = [Feed(0, 0, text(2, 0)), Feed(1, 0, text(6, 1))]
    torch.testing.assert_close(runner.forward(rows.batch(feeds)).logits, clean.forward(rows.batch(feeds)).logits)


def test_stale_entries_under_the_mask_change_nothing(path: Path) -> None:
    rows = Rows(3, 32, BLOCK)
    runner, clean = load(path, rows), load(path, rows)
    for layer in runner.pool.layers:
        layer.fill_(100.0)
    feeds = [Feed(0, 0, text(3, 0)), Feed(1, 0, text(21, 1)), Feed(2, 0, [9])]
    assert torch.equal(runner.forward(rows.batch(feeds)).logits, clean.forward(rows.batch(feeds)).logits)


def test_any_mix_of_rows_gives_nearly_the_same_bits(path: Path) -> None:
    """On a CPU with oneDNN's packed products the same bits; elsewhere far closer than any near-tie."""
    lengths = (430, 250, 90)
    texts = [text(length, seed) for seed, length in enumerate(lengths)]
    rows = Rows(3, 448, 16)
    runner = load(path, rows)
    expected = [runner.forward(rows.batch([Feed(row, 0, texts[row])])).logits for row in range(3)]
    runner.allocate_kv(rows.num_blocks, 16)
    done, source = [0, 0, 0], random.Random(3)
    while any(done[row] < lengths[row] for row in range(3)):
        feeds = _next_feeds(texts, done, source)
        actual = runner.forward(rows.batch(feeds)).logits
        wanted = torch.cat([expected[f.row][f.start : f.start + len(f.tokens)] for f in feeds])
        torch.testing.assert_close(actual, wanted, atol=2e-5, rtol=0)


def _next_feeds(texts: list[list[int]], done: list[int], source: random.Random) -> list[Feed]:
    """Rows of random widths; at least one of the unfinished rows goes on."""
    feeds = []
    unfinished = [row for row in range(len(texts)) if done[row] < len(texts[row])]
    for row in source.sample(unfinished, source.randint(1, len(unfinished))):
        tokens = texts[row][done[row] : done[row] + source.choice([1, 6, 6, 17, 150])]
        feeds.append(Feed(row, done[row], tokens, done[row]))
        done[row] += len(tokens)
    return feeds


def test_zero_slots_touches_no_other_slot(path: Path) -> None:
    rows = Rows(2, 16, BLOCK)
    runner = load(path, rows)
    for layer in runner.pool.layers:
        layer.fill_(1.0)
    runner.zero_slots(torch.tensor([5, 9]))
    layers = [by_token(layer) if runner.native is not None else layer for layer in runner.pool.layers]
    zeroed: list[Tensor] = [(layer.flatten(0, 1) == 0).flatten(1).all(-1) for layer in layers]
    assert all((layer == 1.0).sum() == layer.numel() - 2 * layer[0, 0].numel() for layer in layers)
    assert all(slots.nonzero().flatten().tolist() == [5, 9] for slots in zeroed)


@pytest.mark.parametrize("block_size", [1, 4, 16, 32, 128])
def test_padding_of_keys(block_size: int) -> None:
    for length in range(1, 1500):
        padded = padded_keys(length, block_size)
        assert padded >= length
        assert padded % max(block_size, 16) == 0
        assert not 192 < padded % 512 < 384
        assert padded - length < 192 + max(block_size, 16)


def test_padding_of_query_rows() -> None:
    for rows in range(1, 400):
        assert 0 <= padded_rows(rows) - rows <= 3
        assert padded_rows(rows) % 32 not in (1, 2, 3)
