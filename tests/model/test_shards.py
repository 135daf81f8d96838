"""A model split over ranks computes what the whole one does, whatever its kind; each rank reads only its own pieces."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from model.fp8_checkpoints import make_fp8
from model.rows import Feed, Rows
from model.thread_ranks import ThreadGroup, on_ranks
from model.tiny import KINDS, make_tiny
from safetensors.torch import load_file
from torch import Tensor

from paceline.config import ModelConfig
from paceline.distributed.group import ALONE, Group
from paceline.errors import UnsupportedModelError
from paceline.models import loader
from paceline.models.draft_head import COUNTS_FILE
from paceline.runner.model_runner import ModelRunner

TEXT = torch.randint(3, 101, (23,), generator=torch.Generator().manual_seed(3)).tolist()


def load(path: Path, group: Group = ALONE, *, fp8_products: bool = False, **more: Any) -> ModelRunner:
    config = ModelConfig(path=path, name=path.name, max_model_len=64, vocab_size=101, **more)
    return ModelRunner.load(config, group=group, fp8_products=fp8_products)


def logits(path: Path, size: int, *, use_fused: bool = False, **more: Any) -> list[Tensor]:
    """Of every rank, at all places of TEXT: a chunk, then what follows it in one go."""

    def work(group: Group) -> Tensor:
        runner = load(path, group, **more)
        runner.use_fused = use_fused
        rows = Rows(1, 32, 4)
        runner.allocate_kv(rows.num_blocks, 4)
        parts = [runner.forward(rows.batch([Feed(0, start, TEXT[start:end])])) for start, end in ((0, 17), (17, 23))]
        assert all(part.finite.all() for part in parts)
        return torch.cat([part.logits for part in parts])

    return on_ranks(size, work) if size > 1 else [work(ALONE)]


def error(found: Tensor, exact: Tensor) -> float:
    return float((found - exact).norm() / exact.norm())


@pytest.mark.parametrize(("kind", "size"), [(kind, 2) for kind in KINDS if kind != "smollm2"] + [
    ("llama", 4), ("llama3", 4), ("llama_bias", 4), ("qwen3", 4),
])  # fmt: skip
def test_ranks_together_give_the_logits_of_the_whole(tmp_path: Path, kind: str, size: int) -> None:
    path = make_tiny(kind, tmp_path)
    (whole,) = logits(path, 1)
    split = logits(path, size)
    torch.testing.assert_close(split[0], whole, atol=5e-5, rtol=1e-4)
    assert all(torch.equal(other, split[0]) for other in split[1:])  # to the bit: acceptance is decided on them


def test_heads_that_do_not_divide_and_a_tied_head(tmp_path: Path) -> None:
    """9 heads in 3 groups are 6 and 3 on two ranks; 8 ranks for 101 tokens leave one without any."""
    path = make_tiny("smollm2", tmp_path / "uneven", num_attention_heads=9, num_key_value_heads=3, hidden_size=72)
    torch.testing.assert_close(logits(path, 2)[1], logits(path, 1)[0], atol=2e-5, rtol=1e-4)
    path = make_tiny("smollm2", tmp_path / "tied", num_attention_heads=8, num_key_value_heads=2, intermediate_size=160)
    for group in on_ranks(8, lambda group: load(path, group).model):
        assert group.head.num_bytes > 0
    torch.testing.assert_close(logits(path, 8)[7], logits(path, 1)[0], atol=2e-5, rtol=1e-4)


def test_the_fused_forward_on_ranks(tmp_path: Path) -> None:
    path = make_tiny("llama3", tmp_path)
    torch.testing.assert_close(logits(path, 2, use_fused=True)[0], logits(path, 1)[0], atol=5e-5, rtol=1e-4)


@pytest.mark.parametrize("form", ["compressed-dynamic", "fp8-static"])
def test_fp8_scales_go_with_their_rows(tmp_path: Path, form: str) -> None:
    """Weights and scales are the file's own pieces; a row-parallel linear has the scales of whole rows, and quantises
    the activations that it has by themselves."""
    path, plain = make_fp8(form, tmp_path)
    stored = load_file(path / "model.safetensors")
    heads, inner = 2 * 16, 48
    first, second = on_ranks(2, lambda group: load(path, group, fp8_products=True).model.layers[0])
    for rank, layer in enumerate((first, second)):
        name = "model.layers.0.self_attn.q_proj.weight"
        weight = stored[name][rank * heads :][:heads]
        assert torch.equal(layer.attention.qkv.weight[:heads].float(), weight.float())
        scale = stored[f"{name}_scale"].float().flatten()
        scale = scale.expand(64) if scale.numel() == 1 else scale
        assert layer.attention.qkv.weight_scale is not None
        assert torch.equal(layer.attention.qkv.weight_scale[:heads], scale[rank * heads :][:heads])
        name = "model.layers.0.mlp.down_proj.weight"
        assert torch.equal(layer.mlp.down.weight.float(), stored[name][:, rank * inner :][:, :inner].float())
        assert layer.mlp.down.weight_scale is not None
        assert torch.equal(layer.mlp.down.weight_scale, stored[f"{name}_scale"].float().flatten().expand(64))
    (exact,) = logits(plain, 1)
    split = logits(path, 2, fp8_products=True)
    assert torch.equal(split[0], split[1])
    assert error(split[0], exact) < 1.3 * error(logits(path, 1, fp8_products=True)[0], exact)
    torch.testing.assert_close(logits(path, 2)[0], exact, atol=2e-5, rtol=1e-4)  # dequantised while loading


def test_quantised_while_loading(tmp_path: Path) -> None:
    path = make_tiny("llama3", tmp_path)
    (exact,) = logits(path, 1)
    fp8 = {"fp8_products": True, "quantization": "fp8", "quantize_lm_head": True}
    assert error(logits(path, 2, **fp8)[0], exact) < 1.3 * error(logits(path, 1, **fp8)[0], exact)


def test_a_reduced_head_is_whole_on_every_rank(tmp_path: Path) -> None:
    path = make_tiny("llama3", tmp_path)
    np.save(path / COUNTS_FILE, np.arange(101))
    (whole,) = logits(path, 1, head_size=40)
    assert whole.isinf().sum(-1).tolist() == [61] * len(TEXT)
    split = logits(path, 2, head_size=40)
    torch.testing.assert_close(split[1], whole, atol=2e-5, rtol=1e-4)


def test_each_rank_reads_its_own_pieces_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_tiny("llama", tmp_path)
    read: Counter[str] = Counter()
    piece = loader._Loading._piece

    def counted(loading: loader._Loading, stored: Any) -> Tensor:
        tensor = piece(loading, stored)
        read[loading.name] += tensor.numel()
        return tensor

    monkeypatch.setattr(loader._Loading, "_piece", counted)
    on_ranks(4, lambda group: load(path, group))
    for name, tensor in load_file(path / "model.safetensors").items():
        times = 1 if name.endswith("_proj.weight") or name == "lm_head.weight" else 4  # embedding and norms: whole
        assert read[name] == times * tensor.numel(), name


def test_dummy_weights_are_the_same_where_ranks_have_the_same(tmp_path: Path) -> None:
    path = make_tiny("llama3", tmp_path)
    (path / "model.safetensors").unlink()
    first, second = on_ranks(2, lambda group: load(path, group, load_format="dummy").model)
    assert torch.equal(first.embedding, second.embedding)
    kept = [model.checkpoint_parts()["model.layers.0.input_layernorm.weight"].data for model in (first, second)]
    assert torch.equal(*kept)
    split = logits(path, 2, load_format="dummy")
    assert torch.equal(*split)
    assert len(split[0].unique()) > 1000  # two shares that differ


def test_a_checkpoint_of_another_shape_is_refused_by_every_rank(tmp_path: Path) -> None:
    path = make_tiny("llama3", tmp_path)
    config = (path / "config.json").read_text().replace('"intermediate_size": 96', '"intermediate_size": 128')
    (path / "config.json").write_text(config)

    def work(group: ThreadGroup) -> str:
        with pytest.raises(UnsupportedModelError) as caught:
            load(path, group)
        return str(caught.value)

    assert all("has shape [96, 64]; config.json asks for [128, 64]" in words or "[64, 96]" in words
               for words in on_ranks(2, work))  # fmt: skip
