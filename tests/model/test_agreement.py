"""Every family gives transformers' logits at every position, whatever the mix of rows in a step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from model.rows import Feed, Rows
from model.tiny import KINDS, make_tiny
from torch import Tensor
from transformers import AutoModelForCausalLM

from paceline.config import ModelConfig
from paceline.runner.model_runner import ModelRunner

BLOCK = 4
LENGTHS = (37, 21, 50, 9)
TOLERANCE = 1e-4


class Pair:
    """Our runner and transformers' logits of the same random texts."""

    def __init__(self, path: Path, *, use_native: bool) -> None:
        self.path = path
        self.use_native = use_native
        reference = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        generator = torch.Generator().manual_seed(7)
        self.texts = [torch.randint(0, 101, (length,), generator=generator).tolist() for length in LENGTHS]
        with torch.inference_mode():
            self.expected: list[Tensor] = [reference(torch.tensor([text])).logits[0] for text in self.texts]

    def runner(self, rows: Rows) -> ModelRunner:
        config = ModelConfig(path=self.path, name="tiny", max_model_len=256)
        runner = ModelRunner.load(config, use_native=self.use_native)
        runner.allocate_kv(rows.num_blocks, rows.block_size)
        return runner

    def check(self, runner: ModelRunner, rows: Rows, feeds: list[Feed]) -> None:
        output = runner.forward(rows.batch(feeds))
        wanted = torch.cat([self.expected[f.row][f.start : f.start + len(f.tokens)] for f in feeds])
        torch.testing.assert_close(output.logits, wanted, atol=TOLERANCE, rtol=0)
        assert output.finite.tolist() == [True] * len(feeds)

    def feed(self, row: int, start: int, count: int, kept_from: int = 0) -> Feed:
        return Feed(row, start, self.texts[row][start : start + count], kept_from)


@pytest.fixture(scope="module", params=[(kind, native) for kind in KINDS for native in (True, False)], ids=str)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    kind, native = request.param
    return Pair(make_tiny(kind, tmp_path_factory.mktemp(kind)), use_native=native)


@pytest.mark.parametrize("shuffled", [True, False])
def test_whole_texts_in_one_batch(pair: Pair, shuffled: bool) -> None:
    rows = Rows(4, 64, BLOCK, shuffled=shuffled)
    pair.check(pair.runner(rows), rows, [pair.feed(row, 0, length) for row, length in enumerate(LENGTHS)])


@pytest.mark.parametrize("shuffled", [True, False])
def test_chunks_decode_and_verification_mixed(pair: Pair, shuffled: bool) -> None:
    """Each step takes another width for each row: a chunk, one token, or K+1 = 6."""
    rows = Rows(4, 64, BLOCK, shuffled=shuffled)
    runner = pair.runner(rows)
    done, widths = [0, 0, 0, 0], [17, 6, 1, 3, 6, 1, 1, 20, 5]
    step = 0
    while any(done[row] < LENGTHS[row] for row in range(4)):
        feeds = []
        for row in (2, 0, 3, 1):
            count = min(widths[(step + 2 * row) % len(widths)], LENGTHS[row] - done[row])
            if count > 0:
                feeds.append(pair.feed(row, done[row], count, done[row]))
                done[row] += count
        pair.check(runner, rows, feeds)
        step += 1


def test_single_row_token_by_token(pair: Pair) -> None:
    rows = Rows(4, 64, BLOCK)
    runner = pair.runner(rows)
    for position in range(LENGTHS[1]):
        pair.check(runner, rows, [pair.feed(1, position, 1, position)])


def test_rejected_tokens_are_overwritten(pair: Pair) -> None:
    """Five wrong drafts lie in the slots; the next step writes over them and never sees them."""
    rows = Rows(4, 64, BLOCK)
    runner = pair.runner(rows)
    runner.forward(rows.batch([pair.feed(0, 0, 10), pair.feed(1, 0, 8)]))
    runner.forward(rows.batch([Feed(0, 10, [99, 98, 97, 96, 95, 94], 10), Feed(1, 8, [3, 4, 5, 6, 7, 8], 8)]))
    pair.check(runner, rows, [pair.feed(0, 10, 1, 10), pair.feed(1, 8, 6, 8)])


def test_tokens_already_present_are_fed_to_the_null_block(pair: Pair) -> None:
    """The draft's first forward feeds the last two committed tokens; the first of them is stored already."""
    rows = Rows(4, 64, BLOCK)
    runner = pair.runner(rows)
    runner.forward(rows.batch([pair.feed(0, 0, 12), pair.feed(3, 0, 5), pair.feed(1, 0, 8)]))
    before = [layer[rows.tables[0]].clone() for layer in runner.pool.layers]
    pair.check(runner, rows, [pair.feed(0, 11, 1, 12), pair.feed(3, 4, 2, 5), pair.feed(1, 5, 3, 8)])
    assert all(torch.equal(kept, layer[rows.tables[0]]) for kept, layer in zip(before, runner.pool.layers, strict=True))
