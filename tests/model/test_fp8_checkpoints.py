"""FP8 weights: every form of checkpoint, dequantised (as on a CPU) and in FP8 (as on a GPU), and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from model.fp8_checkpoints import FORMS, FP8, edit_tensors, make_fp8, quantization_config, set_config
from model.pairs import make_llm, prompts, texts
from model.rows import Feed, Rows
from model.tiny import make_tiny
from model.torch_forward import torch_forward
from safetensors.torch import load_file, save_file
from torch import Tensor

from paceline import SamplingParams
from paceline.config import ModelConfig
from paceline.errors import ConfigurationError, UnsupportedModelError
from paceline.layers.linear import Linear
from paceline.models.architecture import read_architecture
from paceline.models.quantization import CheckpointQuantization, choose_formats, read_quantization
from paceline.runner.kv_pool import KVPool, bytes_per_block
from paceline.runner.model_runner import ModelRunner

K_PROJ = "model__layers__1__self_attn__k_proj"


def load(path: Path, **fields: Any) -> ModelRunner:
    return ModelRunner.load(ModelConfig(path=path, name="tiny", max_model_len=64, **fields))


def load_fp8(path: Path, **fields: Any) -> ModelRunner:
    """As on a device that multiplies FP8: the kernels' references do."""
    return ModelRunner.load(ModelConfig(path=path, name="tiny", max_model_len=64, **fields), fp8_products=True)


def logits(runner: ModelRunner) -> Tensor:
    rows = Rows(1, 16, 4)
    runner.allocate_kv(rows.num_blocks, 4)
    return runner.forward(rows.batch([Feed(0, 0, [3, 1, 4, 1, 5, 9, 2, 6])])).logits


def dequantized(linear: Linear) -> Tensor:
    assert linear.weight_scale is not None
    return linear.weight.float() * linear.weight_scale[:, None]


@pytest.mark.parametrize("form", FORMS)
def test_dequantised_where_there_are_no_fp8_products(tmp_path: Path, form: str) -> None:
    """The same bits as the float32 model of the same numbers; 'llama_bias' has every bias there is."""
    quantized, plain = make_fp8(form, tmp_path, "llama_bias")
    runner = load(quantized)
    assert torch.equal(logits(runner), logits(load(plain)))
    assert runner.formats.words == "the checkpoint's FP8 weights, dequantised while loading: this device has no FP8 " \
        "products"  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_in_fp8_every_part_of_a_fused_linear_has_its_own_scales(tmp_path: Path, form: str) -> None:
    quantized, plain = make_fp8(form, tmp_path, "llama_bias")
    runner, tensors = load_fp8(quantized), load_file(plain / "model.safetensors")
    for index, layer in enumerate(runner.model.layers):
        attention, mlp = f"model.layers.{index}.self_attn", f"model.layers.{index}.mlp"
        qkv = torch.cat([tensors[f"{attention}.{part}_proj.weight"] for part in "qkv"])
        gate_up = torch.cat([tensors[f"{mlp}.{part}_proj.weight"] for part in ("gate", "up")])
        assert torch.equal(dequantized(layer.attention.qkv), qkv)
        assert torch.equal(dequantized(layer.mlp.gate_up), gate_up)
        assert torch.equal(dequantized(layer.mlp.down), tensors[f"{mlp}.down_proj.weight"])
    assert not runner.model.head.is_fp8
    expected = logits(load_plain(plain))
    error = (logits(runner) - expected).norm() / expected.norm()
    assert 0 < error < 0.3  # activations are FP8 too
    assert f"of the checkpoint ({quantization_config(form)['quant_method']})" in runner.formats.words


def load_plain(path: Path) -> ModelRunner:
    assert read_architecture(path).quantization is None
    return load(path)


def test_a_fused_linear_with_an_ignored_part_is_not_fp8_and_loses_nothing(tmp_path: Path) -> None:
    quantized, plain = make_fp8("compressed-dynamic", tmp_path, ignored=("layers.1.self_attn.k_proj",))
    runner = load_fp8(quantized)
    first, second = runner.model.layers
    assert first.attention.qkv.is_fp8
    assert second.attention.o.is_fp8
    assert not second.attention.qkv.is_fp8
    with torch_forward():
        packed = load_plain(plain).model.layers[1].attention.qkv
    x = torch.randn(3, 64)
    assert torch.equal(second.attention.qkv(x), packed(x))


@pytest.mark.parametrize(("head", "kind"), [(False, "llama3"), (True, "llama3"), (True, "smollm2")])
def test_float_checkpoint_is_quantised_while_loading(tmp_path: Path, head: bool, kind: str) -> None:
    path = make_tiny(kind, tmp_path)
    runner, expected = load_fp8(path, quantization="fp8", quantize_lm_head=head), logits(load(path))
    assert all(linear.is_fp8 for layer in runner.model.layers for linear in layer.linears)
    assert runner.model.head.is_fp8 == head
    assert runner.model.embedding.dtype == torch.float32  # tied or not
    assert (logits(runner) - expected).norm() / expected.norm() < 0.3
    weight = load_file(path / "model.safetensors")["model.layers.0.mlp.down_proj.weight"]
    rounding = (dequantized(runner.model.layers[0].mlp.down) - weight).abs().amax(1) / weight.abs().amax(1)
    assert rounding.max() < 1 / 16  # half a step of three mantissa bits


def test_head_of_an_fp8_checkpoint_can_be_quantised_too(tmp_path: Path) -> None:
    quantized, plain = make_fp8("compressed-dynamic", tmp_path)
    runner = load_fp8(quantized, quantize_lm_head=True)
    weight = load_file(plain / "model.safetensors")["lm_head.weight"]
    torch.testing.assert_close(dequantized(runner.model.head), weight, atol=float(weight.abs().max() / 16), rtol=0)
    with pytest.raises(ConfigurationError, match="quantize_lm_head needs an FP8 model"):
        load_fp8(plain, quantize_lm_head=True)


def test_weight_bytes_are_those_of_fp8(tmp_path: Path) -> None:
    quantized, _ = make_fp8("compressed-dynamic", tmp_path)
    saved = load_file(quantized / "model.safetensors")
    assert load_fp8(quantized).weight_bytes == sum(tensor.nbytes for tensor in saved.values())


def test_dummy_fp8_weights_are_finite_through_many_layers(tmp_path: Path) -> None:
    path = make_tiny("llama", tmp_path, num_hidden_layers=80)
    first, again = (load_fp8(path, load_format="dummy", quantization="fp8") for _ in range(2))
    weight = first.model.layers[79].mlp.gate_up.weight
    assert weight.dtype == FP8
    assert torch.equal(weight.view(torch.uint8), again.model.layers[79].mlp.gate_up.weight.view(torch.uint8))
    assert torch.isfinite(weight.float()).all()
    assert 0.015 < dequantized(first.model.layers[79].mlp.gate_up).std() < 0.025
    assert torch.isfinite(logits(first)).all()


def test_scales_may_lie_in_another_shard(tmp_path: Path) -> None:
    quantized, plain = make_fp8("compressed-dynamic", tmp_path)
    tensors = load_file(quantized / "model.safetensors")
    (quantized / "model.safetensors").unlink()
    for shard, is_scale in enumerate((False, True)):
        part = {name: tensor for name, tensor in tensors.items() if name.endswith("_scale") == is_scale}
        save_file(part, quantized / f"model-{shard}.safetensors")
    assert torch.equal(logits(load(quantized)), logits(load(plain)))


@pytest.mark.parametrize("name", ["self_attn.{}_scale", "self_attn.{}_proj.{}_scale", "self_attn.{}_proj.output_scale"])
def test_scales_of_the_cache_are_read_under_every_name(tmp_path: Path, name: str) -> None:
    quantized, _ = make_fp8("fp8-static", tmp_path)
    changes: dict[str, Tensor | None] = {
        f"model.layers.1.{name.format(part, part)}".replace(".", "__"): torch.tensor(value)
        for part, value in (("k", 0.5), ("v", 0.25))
    }
    edit_tensors(quantized, **changes)
    assert load(quantized).model.kv_scales.tolist() == [[1.0, 1.0], [0.5, 0.25]]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({f"{K_PROJ}__weight_scale": None}, "k_proj.weight is FP8, and .*k_proj.weight_scale is missing"),
        ({f"{K_PROJ}__weight_scale": torch.ones(4, 4)}, r"weight_scale has shape \[4, 4\]; supported are one scale"),
        ({f"{K_PROJ}__weight": torch.zeros(32, 64).to(torch.float8_e5m2)}, "float8_e5m2; of quantised weights only"),
        ({f"{K_PROJ}__weight_zero_point": torch.ones(1)}, r"1 unexpected \(.*k_proj.weight_zero_point\)"),
    ],
)
def test_tensors_that_do_not_fit(tmp_path: Path, changes: dict[str, Tensor | None], words: str) -> None:
    quantized, _ = make_fp8("compressed-dynamic", tmp_path)
    edit_tensors(quantized, **changes)
    with pytest.raises(UnsupportedModelError, match=words):
        load(quantized)


INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "symmetric": True}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"quant_method": "awq", "bits": 4}, "quant_method 'awq'"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, r"a scale for every block of \[128, 128\]"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "in format e5m2"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "Model Optimizer's NVFP4"),
        ({"quant_method": "compressed-tensors"}, "without config_groups"),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": INT4}}}, "weights of 4-bit int"),
    ],
)
def test_other_quantisations_are_refused_with_what_is_supported(
    tmp_path: Path, config: dict[str, Any], words: str
) -> None:
    path = make_tiny("llama", tmp_path)
    set_config(path, quantization_config=config)
    with pytest.raises(UnsupportedModelError, match=f"{words}.* is not supported. Supported are FP8"):
        read_architecture(path)


def test_model_optimizers_own_file(tmp_path: Path) -> None:
    """Older checkpoints say nothing in config.json."""
    quantized, plain = make_fp8("modelopt-static", tmp_path)
    set_config(quantized, quantization_config=None)
    content = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    (quantized / "hf_quant_config.json").write_text(json.dumps(content))
    assert load_fp8(quantized).model.layers[0].attention.qkv.is_fp8
    assert torch.equal(logits(load(quantized)), logits(load(plain)))


def test_weights_alone_in_fp8_are_refused(tmp_path: Path) -> None:
    config = quantization_config("compressed-dynamic")
    config["config_groups"]["group_0"]["input_activations"] = None
    with pytest.raises(UnsupportedModelError, match="unquantised input_activations"):
        read_quantization(json.loads(json.dumps({"quantization_config": config})), tmp_path)


@pytest.mark.parametrize(
    ("ignored", "module", "covered"),
    [
        ("lm_head", "lm_head", False),
        ("lm_head", "model.layers.0.mlp.up_proj", True),
        ("model.layers.1.mlp.down_proj", "model.layers.1.mlp.down_proj", False),
        ("model.layers.1.mlp.down_proj", "model.layers.11.mlp.down_proj", True),
        ("re:.*self_attn.*", "model.layers.0.self_attn.q_proj", False),
        ("model.layers.1", "model.layers.1.mlp.up_proj", False),
        ("model.layers.1", "model.layers.10.mlp.up_proj", True),
        ("model.layers.1*", "model.layers.10.mlp.up_proj", False),
        ("*self_attn*", "model.layers.0.mlp.up_proj", True),
    ],
)
def test_names_of_ignored_modules(ignored: str, module: str, covered: bool) -> None:
    assert CheckpointQuantization("fp8", ignored=(ignored,)).covers(module) == covered


def test_head_that_the_checkpoint_quantises() -> None:
    """Not ignored: FP8, unless it is the embedding."""
    checkpoint = CheckpointQuantization("compressed-tensors", ignored=())
    for tied in (False, True):
        formats = choose_formats(
            checkpoint, quantize=False, quantize_lm_head=False, tied_embeddings=tied, has_fp8_products=True
        )
        assert formats.head is not tied


def test_fp8_pool(tmp_path: Path) -> None:
    """Half the bytes of bfloat16, and a failed row's NaN is wiped."""
    arch = read_architecture(make_tiny("llama3", tmp_path))
    pool = KVPool(arch, FP8, torch.device("cpu"), 3, 4)
    assert pool.num_bytes == 3 * bytes_per_block(arch, FP8, 4) == 3 * bytes_per_block(arch, torch.bfloat16, 4) // 2
    pool.layers[0].view(torch.uint8).fill_(0x7F)
    pool.zero_slots(torch.arange(4, 12))
    assert torch.isnan(pool.layers[0].float()).flatten(1).all(1).tolist() == [True, False, False]
    assert not pool.layers[0][1:].float().any()


def test_fused_forward_feeds_fp8_linears(tmp_path: Path) -> None:
    """Norms, attention and activation hand over quantised rows: the same numbers as quantising before each product."""
    quantized, _ = make_fp8("compressed-dynamic", tmp_path, "llama_bias")
    runner = load_fp8(quantized)
    expected = logits(runner)
    runner.use_fused = True
    torch.testing.assert_close(logits(runner), expected, atol=0.05, rtol=0.05)


@pytest.mark.parametrize("scale", [1.0, 0.02])
def test_fp8_cache_stays_near_the_models_own(tmp_path: Path, scale: float) -> None:
    """With the scale of the checkpoint, which is what one unit in the cache means."""
    path = make_tiny("llama3", tmp_path)
    names = (f"model__layers__{layer}__self_attn__{part}_scale" for layer in (0, 1) for part in "kv")
    edit_tensors(path, **{name: torch.tensor(scale) for name in names})
    expected, runner = logits(load(path)), load(path, kv_cache_dtype="fp8")
    runner.use_fused = True
    error = (logits(runner) - expected).norm() / expected.norm()
    assert runner.pool.layers[0].dtype == FP8
    assert 0 < error < 0.15
    runner.model.kv_scales.fill_(3e-5)  # what lies beyond 448 units is cut off
    assert (logits(runner) - expected).norm() / expected.norm() > 0.3


def test_an_fp8_pair_speaks_as_the_same_numbers_do(tmp_path: Path) -> None:
    """From the arguments to the text, on a CPU; the table at the start says what was done."""
    quantized, plain = make_fp8("compressed-static", tmp_path)
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    llm = make_llm(quantized, {"model": str(quantized), "num_speculative_tokens": 3})
    assert texts(llm, prompts(3), params) == texts(make_llm(plain), prompts(3), params)
    table = llm.describe()
    assert "dequantised while loading" in table["target quantization"]
    assert table["draft quantization"] == table["target quantization"]
    assert llm.stats().speculation.acceptance_rate > 0.9
