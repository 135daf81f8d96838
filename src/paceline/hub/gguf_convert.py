"""A Llama-family GGUF file to a Hugging Face directory: config.json, BF16 safetensors, tokenizer, chat template.

Written out here rather than left to transformers' GGUF loader, because that one drops three things a served model
needs: the pre-tokenizer that the file names, Llama 3.1's rotary scaling, and the generation configuration.

Layout, checked by tests: llama.cpp stores the query and key rows of `llama` models in the interleaved rotary order
(pairs i, i+1); Hugging Face wants halves (pairs i, i+d/2). Qwen files are stored unpermuted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import UnsupportedModelError
from paceline.hub.gguf_file import GgufFile
from paceline.hub.gguf_tokenizer import write_tokenizer

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

SHARD_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class Family:
    model_type: str
    hf_class: str
    permuted: bool  # query and key rows are in the interleaved rotary order


FAMILIES = {
    "llama": Family("llama", "LlamaForCausalLM", permuted=True),
    "mistral": Family("mistral", "MistralForCausalLM", permuted=True),
    "qwen2": Family("qwen2", "Qwen2ForCausalLM", permuted=False),
    "qwen3": Family("qwen3", "Qwen3ForCausalLM", permuted=False),
}

TOP_LEVEL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
IN_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
ROPE_FACTORS = "rope_freqs.weight"


def convert(gguf_path: Path, folder: Path) -> None:
    """Write the model into the existing `folder`; the caller owns making that atomic."""
    source = GgufFile(gguf_path)
    family = _family(source)
    config = model_config(source, family)
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", _token_ids(source))
    write_tokenizer(source, folder)
    _write_weights(source, family, config, folder)


def _family(source: GgufFile) -> Family:
    family = FAMILIES.get(source.architecture)
    if family is None or source.arch_value("expert_count"):
        kind = source.architecture + (" with experts" if family else "")
        raise UnsupportedModelError(f"'{source.path}' is a {kind} model; GGUF files of {', '.join(FAMILIES)} work.")
    return family


def model_config(source: GgufFile, family: Family) -> dict[str, Any]:
    heads = source.require("attention.head_count")
    hidden_size = source.require("embedding_length")
    config = {
        "architectures": [family.hf_class],
        "model_type": family.model_type,
        "hidden_size": hidden_size,
        "intermediate_size": source.require("feed_forward_length"),
        "num_hidden_layers": source.require("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": source.arch_value("attention.head_count_kv", heads),
        "head_dim": source.arch_value("attention.key_length", hidden_size // heads),
        "hidden_act": "silu",
        "rms_norm_eps": _short(source.require("attention.layer_norm_rms_epsilon")),
        "rope_theta": _short(source.arch_value("rope.freq_base", 10000.0)),
        "rope_scaling": _rope_scaling(source),
        "max_position_embeddings": source.require("context_length"),
        "vocab_size": source.shape("token_embd.weight")[0],
        "tie_word_embeddings": "output.weight" not in source.tensors,
        "attention_bias": "blk.0.attn_q.bias" in source.tensors,
        "torch_dtype": "bfloat16",
    }
    if family.model_type == "mistral":
        config["sliding_window"] = source.arch_value("attention.sliding_window")
    return config | _token_ids(source)


def _token_ids(source: GgufFile) -> dict[str, Any]:
    """EOS is a list where a turn ends with another token than a text does."""
    bos, eos, end_of_turn, pad = (
        source.get(f"tokenizer.ggml.{key}_token_id") for key in ("bos", "eos", "eot", "padding")
    )
    ends = sorted({token for token in (eos, end_of_turn) if token is not None})
    ids = {"bos_token_id": bos, "eos_token_id": ends if len(ends) > 1 else eos, "pad_token_id": pad}
    return {key: value for key, value in ids.items() if value is not None}


def _short(value: float) -> float:
    """Metadata are float32: 9.99999974e-06 was written as 1e-05."""
    return float(f"{value:.7g}")


def _rope_scaling(source: GgufFile) -> dict[str, Any] | None:
    """Llama 3.1's scaling is stored as one divisor a frequency; its parameters are read back from the largest."""
    if ROPE_FACTORS in source.tensors:
        return {
            "rope_type": "llama3",
            "factor": float(source.array(ROPE_FACTORS).max()),
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
    kind = source.arch_value("rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind != "linear":
        raise UnsupportedModelError(f"'{source.path}' scales its rotary positions by '{kind}', which is not supported.")
    return {"rope_type": "linear", "factor": float(source.require("rope.scaling.factor"))}


def _write_weights(source: GgufFile, family: Family, config: dict[str, Any], folder: Path) -> None:
    """In shards of at most SHARD_BYTES, so that a large file needs the memory of one shard."""
    from safetensors.torch import save_file

    shards = list(_shards(source))
    weight_map: dict[str, str] = {}
    for index, names in enumerate(shards):
        file_name = f"model-{index + 1:05}-of-{len(shards):05}.safetensors" if len(shards) > 1 else "model.safetensors"
        tensors = {hf_name(name): _tensor(source, name, family, config) for name in names}
        save_file(tensors, folder / file_name, metadata={"format": "pt"})
        (folder / file_name).chmod(0o644)  # safetensors writes files that only their owner can read
        weight_map |= dict.fromkeys(tensors, file_name)
    if len(shards) > 1:
        _write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})


def _shards(source: GgufFile) -> Iterator[list[str]]:
    shard: list[str] = []
    size = 0
    for name, tensor in source.tensors.items():
        if name == ROPE_FACTORS:
            continue
        size_in_bf16 = 2 * int(tensor.n_elements)
        if shard and size + size_in_bf16 > SHARD_BYTES:
            yield shard
            shard, size = [], 0
        shard.append(name)
        size += size_in_bf16
    yield shard


def hf_name(name: str) -> str:
    """blk.3.attn_q.weight -> model.layers.3.self_attn.q_proj.weight"""
    match name.split("."):
        case ["blk", layer, module, kind] if module in IN_BLOCK:
            return f"model.layers.{layer}.{IN_BLOCK[module]}.{kind}"
        case [module, kind] if module in TOP_LEVEL:
            return f"{TOP_LEVEL[module]}.{kind}"
    raise UnsupportedModelError(f"Unknown tensor '{name}': this model is not a plain Llama, Mistral or Qwen decoder.")


def _tensor(source: GgufFile, name: str, family: Family, config: dict[str, Any]) -> Tensor:
    import torch

    array = source.array(name)
    if family.permuted and ".attn_q." in name:
        array = to_halves(array, config["num_attention_heads"])
    if family.permuted and ".attn_k." in name:
        array = to_halves(array, config["num_key_value_heads"])
    return torch.from_numpy(array.copy()).to(torch.bfloat16)  # the reader's arrays are read-only


def to_halves(array: NDArray[Any], num_heads: int) -> NDArray[Any]:
    """[num_heads * head_dim, ...]: rows of each head from (0,1)(2,3)… pairs to (0,d/2)(1,d/2+1)… pairs."""
    paired = array.reshape(num_heads, -1, 2, *array.shape[1:])
    return paired.swapaxes(1, 2).reshape(array.shape)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")
