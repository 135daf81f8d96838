"""A dense Llama for teaching and learning: the teacher's prefill and the student's training forward.

The engine's own models read a paged cache and never need gradients; a training step wants the plain
form: [rows, length] in, hidden states out, no cache, weights under the names that Hugging Face uses,
so that `state_dict()` is the exported file. Only plain Llama (no biases, no rotary scaling) is built.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from paceline.errors import UnsupportedModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaShape:
    """The sizes of a plain Llama with a tied head."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5
    max_positions: int = 2048

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> LlamaShape:
        """Read a Hugging Face config.json; refuse what this module does not compute."""
        if config.get("model_type") != "llama" or config.get("attention_bias") or config.get("mlp_bias"):
            raise UnsupportedModelError("This reads plain Llamas (model_type 'llama', no biases).")
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        if rope.get("rope_type", "default") != "default":
            raise UnsupportedModelError(f"This does not know the rotary scaling {rope.get('rope_type')!r}.")
        heads = config["num_attention_heads"]
        return cls(
            vocab_size=config["vocab_size"],
            hidden_size=config["hidden_size"],
            num_layers=config["num_hidden_layers"],
            num_heads=heads,
            num_kv_heads=config.get("num_key_value_heads", heads),
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            intermediate_size=config["intermediate_size"],
            rope_theta=rope.get("rope_theta", config.get("rope_theta", 10000.0)),
            rms_norm_eps=config["rms_norm_eps"],
            max_positions=config["max_position_embeddings"],
        )

    @property
    def num_parameters(self) -> int:
        """Parameters without the norms' vectors."""
        attention = 2 * self.hidden_size * self.head_dim * (self.num_heads + self.num_kv_heads)
        return self.vocab_size * self.hidden_size + self.num_layers * (
            attention + 3 * self.hidden_size * self.intermediate_size
        )


def rotary_table(shape: LlamaShape, positions: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin [positions, head_dim], the halves repeated as Llama's rotate-half wants them."""
    exponent = torch.arange(0, shape.head_dim, 2, dtype=torch.float32, device=device) / shape.head_dim
    angles = torch.outer(torch.arange(positions, dtype=torch.float32, device=device), shape.rope_theta**-exponent)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x [..., head_dim] in fp32; cos and sin broadcast against it."""
    first, second = x.float().chunk(2, dim=-1)
    return (torch.cat((first, second), -1) * cos + torch.cat((-second, first), -1) * sin).to(x.dtype)


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (scaled * self.weight.float()).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(shape.hidden_size, shape.num_heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, shape.num_kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, shape.num_kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.num_heads * shape.head_dim, shape.hidden_size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [B, T, hidden] -> output, and the keys and values [B, kv_heads, T, head_dim]."""
        split = (*x.shape[:2], -1, self.shape.head_dim)
        queries = rotate(self.q_proj(x).view(split).transpose(1, 2), cos, sin)
        keys = rotate(self.k_proj(x).view(split).transpose(1, 2), cos, sin)
        values = self.v_proj(x).view(split).transpose(1, 2)
        grouped = self.shape.num_heads != self.shape.num_kv_heads
        mixed = F.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=grouped)
        return self.o_proj(mixed.transpose(1, 2).reshape(*x.shape[:2], -1)), keys, values


class MLP(nn.Module):
    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = MLP(shape)
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mixed, keys, values = self.self_attn(self.input_layernorm(x), cos, sin)
        x = x + mixed
        return x + self.mlp(self.post_attention_layernorm(x)), keys, values


class Llama(nn.Module):
    """Token ids [B, T] -> last hidden states after the final norm [B, T, hidden]; the head is the table."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_layers))
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)

    @property
    def table(self) -> nn.Parameter:
        """The tied table [vocab, hidden]: embedding and head."""
        return cast(nn.Parameter, self.embed_tokens.weight)

    def forward(self, token_ids: Tensor) -> Tensor:
        cos, sin = rotary_table(self.shape, token_ids.shape[1], token_ids.device)
        x = self.embed_tokens(token_ids)
        for layer in self.layers:
            x, _, _ = layer(x, cos, sin)
        out: Tensor = self.norm(x)
        return out


def is_plain_llama(config: dict[str, Any]) -> bool:
    """Is a config.json's model one that `load_llama` computes?"""
    try:
        LlamaShape.from_config(config)
    except (UnsupportedModelError, KeyError):
        return False
    return bool(config.get("tie_word_embeddings"))


def load_llama(path: Path, *, dtype: torch.dtype, device: torch.device) -> Llama:
    """Load a Hugging Face directory with a tied head."""
    config = json.loads((path / "config.json").read_text())
    if not config.get("tie_word_embeddings"):
        raise UnsupportedModelError(f"{path} has its own head; this reads models with a tied head.")
    with torch.device("meta"):
        model = Llama(LlamaShape.from_config(config))
    state: dict[str, Tensor] = {}
    for file in sorted(path.glob("*.safetensors")):
        state |= load_file(file)
    state = {k.removeprefix("model."): v.to(device, dtype) for k, v in state.items() if k != "lm_head.weight"}
    model.load_state_dict(state, assign=True)
    return model
