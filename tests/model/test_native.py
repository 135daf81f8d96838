"""The C++ forward against the torch one: every family, every mix of rows; and the same bits whatever runs beside."""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from model.rows import Feed, Rows
from model.tiny import KINDS, make_tiny
from torch import Tensor

from paceline.config import ModelConfig
from paceline.kernels import cpu_pool
from paceline.kernels.cpu_decoder import pack_linear
from paceline.kernels.cpu_program import NoCompilerError, cpu_program
from paceline.models.draft_head import COUNTS_FILE
from paceline.runner.forward_batch import ForwardBatch
from paceline.runner.model_runner import ModelRunner


def _has_compiler() -> bool:
    try:
        cpu_program()
    except NoCompilerError:
        return False
    return True


pytestmark = pytest.mark.skipif(not _has_compiler(), reason="no C++ compiler here")


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def load(path: Path, rows: Rows, *, native: bool = True, **more: object) -> ModelRunner:
    config = ModelConfig(path=path, name="tiny", max_model_len=600, **more)  # type: ignore[arg-type]
    runner = ModelRunner.load(config, use_native=native)
    assert (runner.native is not None) == native
    runner.allocate_kv(rows.num_blocks, rows.block_size)
    return runner


def text(length: int, seed: int) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(3, 100) for _ in range(length)]


def ragged(rows: Rows) -> list[ForwardBatch]:
    """Chunks, then single tokens, verified drafts and a chunk; a token that is in the pool already; repeated places."""
    first = rows.batch([Feed(0, 0, text(70, 0)), Feed(1, 0, text(5, 1)), Feed(2, 0, text(33, 2))])
    feeds = [Feed(1, 4, [text(5, 1)[4], 9], 5), Feed(0, 70, text(6, 3)), Feed(2, 33, [7]), Feed(3, 0, text(40, 4))]
    return [first, rows.batch(feeds, [1, 2, 3, 3, 3, 7, 8, 8, 48])]


def assert_near(found: Tensor, expected: Tensor, tolerance: float) -> None:
    assert torch.equal(found.isinf(), expected.isinf())
    found, expected = found.nan_to_num(neginf=0.0), expected.nan_to_num(neginf=0.0)
    assert float((found - expected).abs().max()) <= tolerance * float(expected.abs().max())


@pytest.mark.parametrize("block_size", [1, 4, 16, 64])
@pytest.mark.parametrize("kind", KINDS)
def test_every_family_as_torch_has_it(tmp_path: Path, kind: str, block_size: int) -> None:
    path, rows = make_tiny(kind, tmp_path), Rows(4, 128, block_size)
    native, reference = load(path, rows), load(path, rows, native=False)
    for batch in ragged(rows):
        found, expected = native.forward(batch), reference.forward(batch)
        assert_near(found.logits, expected.logits, 1e-5)
        assert found.finite.tolist() == expected.finite.tolist() == [True] * len(batch.query_lens)
    for ours, theirs in zip(native.pool.layers, reference.pool.layers, strict=True):
        torch.testing.assert_close(cpu_pool.by_token(ours)[1:], theirs[1:], atol=5e-5, rtol=1e-4)


@pytest.mark.parametrize("sizes", [
    {"hidden_size": 40, "head_dim": 8, "intermediate_size": 17, "vocab_size": 113},
    {"num_attention_heads": 8, "num_key_value_heads": 1, "intermediate_size": 200},
    {"num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 8, "num_hidden_layers": 1},
])  # fmt: skip
@pytest.mark.parametrize("kind", ["llama_bias", "qwen3"])
def test_sizes_that_fill_no_panel(tmp_path: Path, kind: str, sizes: dict[str, int]) -> None:
    path, rows = make_tiny(kind, tmp_path, **sizes), Rows(4, 128, 4)
    native, reference = load(path, rows), load(path, rows, native=False)
    for batch in ragged(rows):
        assert_near(native.forward(batch).logits, reference.forward(batch).logits, 1e-5)


def test_a_head_size_without_whole_vectors_is_left_to_torch(tmp_path: Path) -> None:
    config = ModelConfig(path=make_tiny("qwen3", tmp_path, head_dim=12), name="tiny", max_model_len=64)
    assert ModelRunner.load(config).native is None


def test_a_reduced_head_knows_its_tokens_alone(tmp_path: Path) -> None:
    path, rows = make_tiny("smollm2", tmp_path), Rows(4, 128, 4)
    np.save(path / COUNTS_FILE, np.arange(101) % 7)
    native, reference = load(path, rows, head_size=37), load(path, rows, native=False, head_size=37)
    for batch in ragged(rows):
        found = native.forward(batch).logits
        assert found.isinf().sum(-1).tolist() == [101 - 37] * len(found)
        assert_near(found, reference.forward(batch).logits, 1e-5)


def test_bfloat16_weights_in_float32_arithmetic(tmp_path: Path) -> None:
    """A bfloat16 model is its rounded weights in float32, but for the rounding of its cache: nearer than torch's."""
    path, rows = make_tiny("llama3", tmp_path), Rows(4, 128, 16)
    native, torchs = (load(path, rows, native=native, dtype="bfloat16") for native in (True, False))
    exact = load(round_weights(path, tmp_path / "rounded"), rows)
    assert native.native is not None
    assert exact.native is not None
    assert native.native.words == exact.native.words == "bfloat16"  # held in 16 bits, both
    batch = ragged(rows)[0]
    wanted = exact.forward(batch).logits
    error, theirs = ((runner.forward(batch).logits - wanted).norm() for runner in (native, torchs))
    assert 0 < error < theirs / 2


def round_weights(path: Path, to: Path) -> Path:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
    model.to(torch.float32).save_pretrained(to)
    return to


def test_held_in_16_bits_gives_the_bits_of_32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, rows = make_tiny("llama_bias", tmp_path / "a"), Rows(4, 128, 16)
    path = round_weights(path, tmp_path / "b")
    half = load(path, rows)
    monkeypatch.setattr("paceline.kernels.cpu_decoder._smallest", lambda weight: weight)
    full = load(path, rows)
    assert half.native is not None
    assert full.native is not None
    assert 2 * half.native.num_bytes < 1.1 * full.native.num_bytes
    for batch in ragged(rows):
        assert torch.equal(half.forward(batch).logits, full.forward(batch).logits)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["smollm2", "qwen2_sliding", "mistral"])
def test_p10_a_row_has_the_same_bits_in_any_batch(tmp_path: Path, kind: str, dtype: str) -> None:
    """1 to 40 rows of different lengths at once, in one piece or many, by 1, 2 or 4 threads: the bits of each alone."""
    path, rows = make_tiny(kind, tmp_path), Rows(40, 48, 4)
    runner, alone = load(path, rows, dtype=dtype), load(path, rows, dtype=dtype)
    texts = [text(8 + row, row) for row in range(40)]
    wanted = [alone.forward(rows.batch([Feed(row, 0, words)])).logits for row, words in enumerate(texts)]
    for count in (1, 2, 3, 5, 7, 13, 24, 40):
        torch.set_num_threads((1, 2, 4)[count % 3])
        for start, end in ((0, 6), (6, 7), (7, None)):
            feeds = [Feed(row, start, texts[row][start:end]) for row in range(count)]
            found = runner.forward(rows.batch(feeds)).logits
            assert torch.equal(found, torch.cat([wanted[row][start:end] for row in range(count)]))


@settings(max_examples=15, deadline=None)
@given(cuts=st.lists(st.integers(1, 130), min_size=1, max_size=6), window=st.sampled_from([None, 9, 64, 65, 130]))
def test_p10_chunks_of_any_length_give_the_same_bits(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], window: int | None
) -> None:
    path = tmp_path_factory.getbasetemp() / f"window{window}"
    if not path.exists():
        make_tiny("mistral", path, sliding_window=window, max_position_embeddings=800)
    words, rows = text(sum(cuts), 5), Rows(1, 800, 16)
    runner = load(path, rows)
    whole = runner.forward(rows.batch([Feed(0, 0, words)])).logits
    runner.allocate_kv(rows.num_blocks, rows.block_size)
    start = 0
    for length in cuts:
        found = runner.forward(rows.batch([Feed(0, start, words[start : start + length])])).logits
        assert torch.equal(found, whole[start : start + length])
        start += length


def test_a_long_prompt_goes_through_in_pieces(tmp_path: Path) -> None:
    path, rows = make_tiny("llama", tmp_path, max_position_embeddings=1024), Rows(2, 580, 16)
    native, reference = load(path, rows), load(path, rows, native=False)
    batch = rows.batch([Feed(0, 0, text(580, 0)), Feed(1, 0, text(300, 1))], [0, 383, 384, 579, 580, 879])
    assert_near(native.forward(batch).logits, reference.forward(batch).logits, 1e-5)


def test_other_dtypes_of_weights_are_seen_number_by_number() -> None:
    weight = torch.randn(5, 7).bfloat16().float()
    assert pack_linear(weight).format_name == "bfloat16"
    weight[4, 6] += 1e-6
    assert pack_linear(weight).format_name == "float32"
    weight[4, 6] = float("nan")
    assert pack_linear(weight).format_name == "float32"


def test_after_a_fork_the_child_has_threads_of_its_own(tmp_path: Path) -> None:
    path, rows = make_tiny("llama", tmp_path), Rows(4, 128, 4)
    runner, batch = load(path, rows), ragged(rows)[0]
    wanted = runner.forward(batch).logits
    with multiprocessing.get_context("fork").Pool(1) as pool:
        same = pool.apply_async(_equal_in_a_child, (path, rows, wanted)).get(timeout=60)
    assert same
    assert torch.equal(runner.forward(batch).logits, wanted)


def _equal_in_a_child(path: Path, rows: Rows, wanted: Tensor) -> bool:
    torch.set_num_threads(1)  # libgomp's own threads are gone as well; ours are not asked for by torch's operators
    runner, batch = load(path, rows), ragged(rows)[0]
    torch.set_num_threads(2)
    return all(bool((runner.forward(batch).logits == wanted).all()) for _ in range(3))


@pytest.mark.parametrize("poison", [None, float("nan"), float("inf")])
def test_the_likeliest_tokens_are_found_on_the_way(tmp_path: Path, poison: float | None) -> None:
    """As torch finds them: the first of equals, and NaN where there is one."""
    path, rows = make_tiny("smollm2", tmp_path), Rows(4, 128, 4)
    runner = load(path, rows)
    if poison is not None:
        runner.model.embedding[7] = poison  # the last token of the second batch's third row
    for batch in ragged(rows):
        output = runner.forward(batch)
        values, token_ids = output.logits.max(-1)
        assert output.peaks is not None
        torch.testing.assert_close(output.peaks.values, values, atol=0, rtol=0, equal_nan=True)
        known = values.isfinite()
        assert torch.equal(output.peaks.token_ids[known], token_ids[known])
    assert output.finite.tolist() == [True, True, poison is None, True]
    assert output.cut(101) is output
    assert output.cut(90).peaks is None


@pytest.mark.parametrize("kind", ["smollm2", "qwen3", "qwen2_sliding"])
def test_what_no_logits_are_asked_of_skips_the_last_layer_and_changes_nothing(tmp_path: Path, kind: str) -> None:
    """The same logits and the same pool as with the logits of every token; in every piece of a long prompt."""
    path, rows = make_tiny(kind, tmp_path, max_position_embeddings=1024), Rows(2, 440, 16)
    skipping, full = load(path, rows), load(path, rows)
    feeds = [Feed(0, 0, text(430, 0)), Feed(1, 0, text(40, 1)), Feed(1, 40, [5])]
    wanted = [429, 430, 460, 460, 470]
    found = skipping.forward(rows.batch(feeds, wanted)).logits
    assert torch.equal(found, full.forward(rows.batch(feeds)).logits[wanted])
    for ours, theirs in zip(skipping.pool.layers, full.pool.layers, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_failure_is_seen_where_the_last_layer_is_skipped(tmp_path: Path, poison: float) -> None:
    """In a token that is asked for nothing: no other row's, and not only at the next one that attends to it."""
    path, rows = make_tiny("llama_bias", tmp_path), Rows(3, 128, 16)
    runner = load(path, rows)
    middle = [3] * 20 + [99] + [4] * 20
    feeds = [Feed(row, 0, middle if row == 1 else [5] * 40) for row in range(3)]
    runner.model.embedding[99] = poison
    assert runner.forward(rows.batch(feeds, [39, 120])).finite.tolist() == [True, False, True]
    runner.model.embedding[99] = 0.0
    assert all(runner.forward(rows.batch(feeds, [39, 120])).finite.tolist())
    assert runner.native is not None
    last_qkv = runner.native._linears[-5]
    assert last_qkv.bias is not None
    last_qkv.bias[last_qkv.outputs - 1] = poison  # of values
    assert not any(runner.forward(rows.batch(feeds, [])).finite.tolist())
