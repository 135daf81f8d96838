"""Loading: shards, tied heads, every way the files can be wrong, dummy weights, and the bytes that are counted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from model.rows import Feed, Rows
from model.tiny import make_tiny
from safetensors.torch import load_file, save_file
from torch import Tensor

from paceline.config import Dtype, LoadFormat, ModelConfig
from paceline.errors import UnsupportedModelError
from paceline.models.architecture import read_architecture
from paceline.runner.kv_pool import KVPool, bytes_per_block
from paceline.runner.model_runner import ModelRunner


def load(
    path: Path, *, load_format: LoadFormat = "auto", dtype: Dtype = "float32", seed: int = 0
) -> tuple[ModelRunner, Tensor]:
    """A runner, and its logits on a fixed text."""
    config = ModelConfig(path=path, name="tiny", max_model_len=64, load_format=load_format, dtype=dtype)
    runner, rows = ModelRunner.load(config, seed=seed), Rows(1, 16, 4)
    runner.allocate_kv(rows.num_blocks, 4)
    return runner, runner.forward(rows.batch([Feed(0, 0, [3, 1, 4, 1, 5, 9, 2, 6])])).logits


def rewrite(path: Path, tensors: dict[str, Tensor]) -> Path:
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return path


def test_shards_give_the_same_model(tmp_path: Path) -> None:
    path = make_tiny("llama", tmp_path)
    _, expected = load(path)
    tensors = sorted(load_file(path / "model.safetensors").items())
    (path / "model.safetensors").unlink()
    save_file(dict(tensors[::2]), path / "model-00001-of-00002.safetensors")
    save_file(dict(tensors[1::2]), path / "model-00002-of-00002.safetensors")
    assert torch.equal(load(path)[1], expected)


def test_tied_head_that_was_saved_all_the_same(tmp_path: Path) -> None:
    path = make_tiny("smollm2", tmp_path)
    _, expected = load(path)
    tensors = load_file(path / "model.safetensors")
    rewrite(path, {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()})
    assert torch.equal(load(path)[1], expected)


def test_missing_tensor_is_named(tmp_path: Path) -> None:
    path = make_tiny("llama", tmp_path)
    tensors = load_file(path / "model.safetensors")
    del tensors["model.layers.1.self_attn.k_proj.weight"]
    with pytest.raises(UnsupportedModelError, match=r"1 missing \(model.layers.1.self_attn.k_proj.weight\)"):
        load(rewrite(path, tensors))


def test_unexpected_tensor_is_named(tmp_path: Path) -> None:
    path = make_tiny("llama", tmp_path)
    tensors = load_file(path / "model.safetensors")
    tensors["model.layers.0.self_attn.q_norm.weight"] = torch.ones(16)
    with pytest.raises(UnsupportedModelError, match=r"1 unexpected \(model.layers.0.self_attn.q_norm.weight\)"):
        load(rewrite(path, tensors))


def test_wrong_shape_is_named(tmp_path: Path) -> None:
    path = make_tiny("llama", tmp_path)
    tensors = load_file(path / "model.safetensors")
    tensors["model.norm.weight"] = torch.ones(63)
    with pytest.raises(UnsupportedModelError, match=r"model.norm.weight has shape \[63\].*asks for \[64\]"):
        load(rewrite(path, tensors))


def test_quantised_tensor_is_refused(tmp_path: Path) -> None:
    path = make_tiny("llama", tmp_path)
    tensors = load_file(path / "model.safetensors")
    tensors["model.norm.weight"] = torch.ones(64, dtype=torch.int8)
    with pytest.raises(UnsupportedModelError, match="quantised"):
        load(rewrite(path, tensors))


def test_truncated_file_is_named(tmp_path: Path) -> None:
    path = make_tiny("llama", tmp_path)
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(UnsupportedModelError, match="Download it again"):
        load(path)


def test_dummy_weights_need_no_file_and_repeat_with_their_seed(tmp_path: Path) -> None:
    path = make_tiny("qwen2", tmp_path)
    (path / "model.safetensors").unlink()
    first, again, other = (load(path, load_format="dummy", seed=seed)[1] for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_other_dtypes_stay_near(tmp_path: Path, dtype: Dtype) -> None:
    path = make_tiny("qwen3", tmp_path)
    _, expected = load(path)
    runner, actual = load(path, dtype=dtype)
    assert runner.pool.layers[0].dtype == getattr(torch, dtype)
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, expected, atol=0.5, rtol=0.1)


def test_bytes_per_block_is_what_the_pool_takes(tmp_path: Path) -> None:
    arch = read_architecture(make_tiny("llama3", tmp_path))
    pool = KVPool(arch, torch.bfloat16, torch.device("cpu"), 7, 8)
    assert pool.num_bytes == 7 * bytes_per_block(arch, torch.bfloat16, 8)
    assert bytes_per_block(arch, torch.bfloat16, 8) == 2 * 2 * (2 * 16) * 8 * 2  # K and V, layers, KV·D, slots, bytes


def test_weight_bytes(tmp_path: Path) -> None:
    untied, _ = load(make_tiny("llama", tmp_path / "untied"))
    saved = sum(t.nbytes for t in load_file(tmp_path / "untied" / "model.safetensors").values())
    filled_up = 11 * 64 * 4 if untied.native else 0  # the head's panels of 16 tokens
    assert untied.weight_bytes == saved + filled_up
    tied, _ = load(make_tiny("smollm2", tmp_path / "tied"))
    saved = sum(t.nbytes for t in load_file(tmp_path / "tied" / "model.safetensors").values())
    packed_head = 112 * 48 * 4 if tied.native else 101 * 48 * 4  # where there is one
    assert tied.weight_bytes - saved in (0, packed_head)
