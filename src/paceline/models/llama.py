"""The decoder of every supported family: embed, N times (attention, MLP), norm, head.

Contract
- `LlamaModel(architecture, dtype, device, ...)` allocates; `checkpoint_views()` maps each name of the checkpoint to
  the part of a parameter it belongs to, so that the loader copies straight into fused parameters.
- `forward` stores the keys and values of T tokens in the layers of the pool and returns the final hidden states
  [T, hidden], normed; `logits` turns chosen ones into float32 logits.

Activations are [T, ...] without a batch dimension: rows exist only in the attention plan.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from paceline.layers.attention import AttentionPlan, attend, store
from paceline.layers.linear import Linear
from paceline.layers.norm import RMSNorm
from paceline.layers.rotary import rotary_table, rotate_
from paceline.models.architecture import Architecture


class Parameters:
    """Makes uninitialised parameters of one dtype on one device."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype = dtype
        self.device = device

    def tensor(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def linear(self, outputs: int, inputs: int, *, bias: bool) -> Linear:
        return Linear(self.tensor(outputs, inputs), self.tensor(outputs) if bias else None)


class Attention:
    def __init__(self, index: int, arch: Architecture, make: Parameters) -> None:
        self.arch = arch
        self.window = arch.sliding_windows[index]
        self.qkv = make.linear(arch.q_size + 2 * arch.kv_size, arch.hidden_size, bias=arch.qkv_bias)
        self.o = make.linear(arch.hidden_size, arch.q_size, bias=arch.o_bias)
        self.q_norm = RMSNorm(make.tensor(arch.head_dim), arch.rms_norm_eps) if arch.qk_norm else None
        self.k_norm = RMSNorm(make.tensor(arch.head_dim), arch.rms_norm_eps) if arch.qk_norm else None

    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor, slots: Tensor, plan: AttentionPlan, kv: Tensor) -> Tensor:
        arch = self.arch
        qkv = self.qkv(x)  # [T, q_size + 2 * kv_size]
        heads = qkv.view(x.shape[0], -1, arch.head_dim)  # [T, H + 2 * KV, D]
        self._norm_heads_(heads)
        rotate_(heads[:, : arch.num_heads + arch.num_kv_heads], cos, sin)
        store(kv, slots, qkv[:, arch.q_size :])
        return self.o(attend(heads, kv, plan, self.window))

    def _norm_heads_(self, heads: Tensor) -> None:
        if self.q_norm is None or self.k_norm is None:
            return
        first_v = self.arch.num_heads + self.arch.num_kv_heads
        q, k = heads[:, : self.arch.num_heads], heads[:, self.arch.num_heads : first_v]
        q.copy_(self.q_norm(q))
        k.copy_(self.k_norm(k))

    def checkpoint_views(self) -> dict[str, Tensor]:
        q, kv = self.arch.q_size, self.arch.kv_size
        views = _split(self.qkv, {"q_proj": q, "k_proj": kv, "v_proj": kv}) | _split(self.o, {"o_proj": -1})
        if self.q_norm is not None and self.k_norm is not None:
            views |= {"q_norm.weight": self.q_norm.weight, "k_norm.weight": self.k_norm.weight}
        return views


class MLP:
    def __init__(self, arch: Architecture, make: Parameters) -> None:
        self.size = arch.intermediate_size
        self.gate_up = make.linear(2 * self.size, arch.hidden_size, bias=arch.mlp_bias)
        self.down = make.linear(arch.hidden_size, self.size, bias=arch.mlp_bias)

    def __call__(self, x: Tensor) -> Tensor:
        gate_up = self.gate_up(x)
        gate, up = gate_up[:, : self.size], gate_up[:, self.size :]
        return self.down(functional.silu(gate).mul_(up))

    def checkpoint_views(self) -> dict[str, Tensor]:
        return _split(self.gate_up, {"gate_proj": self.size, "up_proj": self.size}) | _split(
            self.down, {"down_proj": -1}
        )


class DecoderLayer:
    def __init__(self, index: int, arch: Architecture, make: Parameters) -> None:
        self.attention = Attention(index, arch, make)
        self.mlp = MLP(arch, make)
        self.input_norm = RMSNorm(make.tensor(arch.hidden_size), arch.rms_norm_eps)
        self.post_norm = RMSNorm(make.tensor(arch.hidden_size), arch.rms_norm_eps)

    def forward_(
        self, hidden: Tensor, cos: Tensor, sin: Tensor, slots: Tensor, plan: AttentionPlan, kv: Tensor
    ) -> None:
        """Add this layer to `hidden` [T, hidden_size] in place."""
        hidden.add_(self.attention(self.input_norm(hidden), cos, sin, slots, plan, kv))
        hidden.add_(self.mlp(self.post_norm(hidden)))

    def checkpoint_views(self) -> dict[str, Tensor]:
        return {
            **{f"self_attn.{name}": view for name, view in self.attention.checkpoint_views().items()},
            **{f"mlp.{name}": view for name, view in self.mlp.checkpoint_views().items()},
            "input_layernorm.weight": self.input_norm.weight,
            "post_attention_layernorm.weight": self.post_norm.weight,
        }


class LlamaModel:
    def __init__(self, arch: Architecture, dtype: torch.dtype, device: torch.device, max_positions: int) -> None:
        make = Parameters(dtype, device)
        self.arch = arch
        self.embedding = make.tensor(arch.vocab_size, arch.hidden_size)
        self.layers = [DecoderLayer(index, arch, make) for index in range(arch.num_layers)]
        self.norm = RMSNorm(make.tensor(arch.hidden_size), arch.rms_norm_eps)
        self.head = Linear(self.embedding if arch.tied_embeddings else make.tensor(arch.vocab_size, arch.hidden_size))
        self.rotary = rotary_table(arch.rope, arch.head_dim, max_positions).to(device, dtype)

    def forward(
        self, token_ids: Tensor, positions: Tensor, slots: Tensor, plan: AttentionPlan, kv_layers: list[Tensor]
    ) -> Tensor:
        """Final hidden states [T, hidden_size], normed. Writes the tokens' keys and values into `kv_layers`."""
        rotary = self.rotary.index_select(0, positions)
        cos, sin = rotary[:, :1], rotary[:, 1:]
        hidden = functional.embedding(token_ids, self.embedding)
        for layer, kv in zip(self.layers, kv_layers, strict=True):
            layer.forward_(hidden, cos, sin, slots, plan, kv)
        return self.norm(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        """[L, hidden_size] -> [L, vocab_size] float32."""
        return self.head(hidden).float()

    def pack(self) -> None:
        """Bring every linear into its fastest form; called once, after loading, one weight at a time."""
        for layer in self.layers:
            for linear in (layer.attention.qkv, layer.attention.o, layer.mlp.gate_up, layer.mlp.down):
                linear.pack()
        self.head.pack()

    def checkpoint_views(self) -> dict[str, Tensor]:
        """Valid until `pack`. Every tensor name of the checkpoint, with the memory it is loaded into."""
        views = {"model.embed_tokens.weight": self.embedding, "model.norm.weight": self.norm.weight}
        if not self.arch.tied_embeddings:
            views["lm_head.weight"] = self.head.weight
        for index, layer in enumerate(self.layers):
            views |= {f"model.layers.{index}.{name}": view for name, view in layer.checkpoint_views().items()}
        return views


def _split(linear: Linear, sizes: dict[str, int]) -> dict[str, Tensor]:
    """The rows of a fused projection by the names they have in the checkpoint; -1: all of them."""
    views, start = {}, 0
    for name, size in sizes.items():
        end = linear.weight.shape[0] if size < 0 else start + size
        views[f"{name}.weight"] = linear.weight[start:end]
        if linear.bias is not None:
            views[f"{name}.bias"] = linear.bias[start:end]
        start = end
    return views
