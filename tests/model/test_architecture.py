"""config.json in both spellings, and every refusal with its reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from model.tiny import make_tiny

from paceline.errors import UnsupportedModelError
from paceline.layers.rope import Rope
from paceline.models.architecture import read_architecture
from paceline.models.support import weight_files

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "eos_token_id": 128001,
}
SCALING = {
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def write(path: Path, **fields: Any) -> Path:
    (path / "config.json").write_text(json.dumps({**LLAMA, **fields}))
    return path


def test_older_spelling_of_rotary_settings(tmp_path: Path) -> None:
    path = write(tmp_path, rope_theta=500000.0, rope_scaling={"rope_type": "llama3", **SCALING})
    assert read_architecture(path).rope == Rope(theta=500000.0, kind="llama3", **SCALING)


def test_newer_spelling_of_rotary_settings(tmp_path: Path) -> None:
    path = write(tmp_path, rope_parameters={"rope_type": "llama3", "rope_theta": 500000.0, **SCALING})
    assert read_architecture(path).rope == Rope(theta=500000.0, kind="llama3", **SCALING)


def test_oldest_spelling_of_linear_scaling(tmp_path: Path) -> None:
    path = write(tmp_path, rope_scaling={"type": "linear", "factor": 4.0})
    assert read_architecture(path).rope == Rope(kind="linear", factor=4.0)


def test_sizes_and_flags(tmp_path: Path) -> None:
    arch = read_architecture(write(tmp_path))
    assert (arch.head_dim, arch.q_size, arch.kv_size) == (64, 2048, 512)
    assert (arch.tied_embeddings, arch.qkv_bias, arch.o_bias, arch.qk_norm) == (True, False, False, False)
    assert arch.dtype == "bfloat16"
    assert arch.eos_token_ids == (128001,)
    assert arch.sliding_windows == (None,) * 16


def test_generation_config_lists_the_ids_that_end_a_turn(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [128001, 128008, 128009]}')
    assert read_architecture(write(tmp_path)).eos_token_ids == (128001, 128008, 128009)


@pytest.mark.parametrize(
    ("fields", "windows"),
    [
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 4096}, (4096,) * 4),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": None}, (None,) * 4),
        ({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 64, "use_sliding_window": False}, (None,) * 4),
        (
            {
                "architectures": ["Qwen2ForCausalLM"],
                "sliding_window": 64,
                "use_sliding_window": True,
                "max_window_layers": 3,
            },
            (None, None, None, 64),
        ),
        (
            {
                "architectures": ["Qwen3ForCausalLM"],
                "sliding_window": 64,
                "use_sliding_window": True,
                "layer_types": ["full_attention", "sliding_attention"] * 2,
            },
            (None, 64, None, 64),
        ),
        ({"sliding_window": 64}, (None,) * 4),  # a Llama has none, whatever its file says
    ],
)
def test_sliding_windows(tmp_path: Path, fields: dict[str, Any], windows: tuple[int | None, ...]) -> None:
    assert read_architecture(write(tmp_path, num_hidden_layers=4, **fields)).sliding_windows == windows


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}, "supported are: Llama"),
        ({"architectures": ["MambaForCausalLM"], "model_type": "mamba"}, "rolled back"),
        ({"architectures": ["RwkvForCausalLM"], "model_type": "rwkv"}, "rolled back"),
        ({"architectures": ["JambaForCausalLM"], "model_type": "jamba"}, "rolled back"),
        ({"architectures": ["RecurrentGemmaForCausalLM"], "model_type": "recurrent_gemma"}, "rolled back"),
        ({"architectures": ["Qwen3NextForCausalLM"], "layer_types": ["linear_attention"]}, "rolled back"),
        ({"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"}, "mixture of experts"),
        ({"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 128}, "mixture of experts"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "'yarn' is not supported"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}}, "'dynamic' is not supported"),
        ({"partial_rotary_factor": 0.5}, "part of each head"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quant_method .gptq. is not supported. Supported are FP8"),
        ({"hidden_act": "gelu"}, "'gelu'"),
        ({"num_key_value_heads": 5}, "cannot be shared"),
        ({"architectures": ["Qwen3ForCausalLM"], "layer_types": ["full_attention"]}, "must name 16 layers"),
    ],
)
def test_p11_refusals(tmp_path: Path, fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnsupportedModelError, match=reason):
        read_architecture(write(tmp_path, **fields))


def test_missing_field_is_named(tmp_path: Path) -> None:
    config = {key: value for key, value in LLAMA.items() if key != "hidden_size"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModelError, match="hidden_size"):
        read_architecture(tmp_path)


def test_directory_without_config(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="does not exist"):
        read_architecture(tmp_path)


def test_broken_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UnsupportedModelError, match="not valid JSON"):
        read_architecture(tmp_path)


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(UnsupportedModelError, match="pickles"):
        weight_files(tmp_path)


def test_no_weights_at_all(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="dummy"):
        weight_files(tmp_path)


def test_what_transformers_writes_is_read(tmp_path: Path) -> None:
    arch = read_architecture(make_tiny("qwen3", tmp_path))
    assert (arch.head_dim, arch.qk_norm, arch.eos_token_ids, arch.dtype) == (24, True, (2,), "float32")
