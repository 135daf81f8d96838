"""The draft before its first step, and the Hugging Face directory it becomes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from paceline.distill.model import Llama, LlamaShape


def principal_axes(table: Tensor, width: int) -> Tensor:
    """The target's table [V, H] on its first `width` principal axes, [V, width]: the rotation of H-space
    that keeps most of every inner product. Scaled so that an element's root mean square is 1/sqrt(width)."""
    wide = table.float()
    axes: Tensor = torch.linalg.eigh(wide.T @ wide).eigenvectors  # ascending
    reduced = wide @ axes[:, -width:].flip(1)
    scale: Tensor = reduced.square().mean().rsqrt() / math.sqrt(width)
    return reduced * scale


def draft_from_target(target_table: Tensor, shape: LlamaShape, *, seed: int) -> Llama:
    """A fresh fp32 student: table from the target's principal axes, each layer silent (its output projections
    are zero), so that the residual stream starts as the embedding itself."""
    device = target_table.device
    generator = torch.Generator(device).manual_seed(seed)
    student = Llama(shape).to(device)
    with torch.no_grad():
        for name, parameter in student.named_parameters():
            if parameter.dim() == 2 and name != "embed_tokens.weight":
                silent = name.endswith(("o_proj.weight", "down_proj.weight"))
                spread = 0.0 if silent else parameter.shape[1] ** -0.5
                parameter.normal_(0.0, spread, generator=generator)
        student.norm.weight.fill_(0.5)  # a tied head predicts its own input at first: start less sure of it
        if shape.hidden_size <= target_table.shape[1]:
            student.table.copy_(principal_axes(target_table, shape.hidden_size))
        else:
            student.table.normal_(0.0, shape.hidden_size**-0.5, generator=generator)
    return student


def hugging_face_config(shape: LlamaShape, target_config: dict[str, Any]) -> dict[str, Any]:
    """config.json of a plain LlamaForCausalLM that shares the target's special tokens."""
    special = {k: target_config[k] for k in ("bos_token_id", "eos_token_id", "pad_token_id") if k in target_config}
    return special | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "dtype": "bfloat16",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.intermediate_size,
        "max_position_embeddings": shape.max_positions,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_parameters": {"rope_theta": shape.rope_theta, "rope_type": "default"},
        "tie_word_embeddings": True,
        "use_cache": True,
    }


def export(student: Llama, target_config: dict[str, Any], out: Path, *, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write config.json, generation_config.json and model.safetensors; the tokenizer is the target's."""
    out.mkdir(parents=True, exist_ok=True)
    config = hugging_face_config(student.shape, target_config)
    config["dtype"] = str(dtype).removeprefix("torch.")
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    special = {k: config[k] for k in ("bos_token_id", "eos_token_id", "pad_token_id") if k in config}
    (out / "generation_config.json").write_text(json.dumps(special, indent=2) + "\n")
    state = {f"model.{k}": v.detach().to("cpu", dtype).contiguous() for k, v in student.state_dict().items()}
    save_file(state, out / "model.safetensors", metadata={"format": "pt"})
