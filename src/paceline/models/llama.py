"""The decoder of every supported family: embed, N times (attention, MLP), norm, head.

Contract
- `LlamaModel(architecture, dtype, device, ...)` allocates; `checkpoint_parts()` maps each name of the checkpoint to
  the part of a parameter it belongs to, so that the loader copies straight into fused parameters.
- `formats` says which linears are FP8; embeddings, norms, biases and activations between layers have `dtype`.
- `forward` stores the keys and values of T tokens in the layers of the pool and returns the final hidden states
  [T, hidden], normed; `logits` turns chosen ones into float32 logits.

Activations are [T, ...] without a batch dimension: rows exist only in the attention plan.

On several ranks a model is one rank's share (sharding.py): `arch` has the heads and columns of this rank, `o` and
`down` add up the ranks' partial sums, and `scores` gathers the logits, so that hidden states and logits are whole and
the same everywhere.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from paceline.distributed.group import ALONE, Group
from paceline.kernels.fp8 import quantize_weight
from paceline.layers.attention import AttentionPlan, attend, store
from paceline.layers.linear import Linear
from paceline.layers.norm import RMSNorm
from paceline.layers.rotary import rotary_table, rotate_
from paceline.models.architecture import Architecture
from paceline.models.loader import FP8, Cut, Part
from paceline.models.quantization import HEAD, LinearFormats
from paceline.models.sharding import Shard, Span, shard_model


class Parameters:
    """Makes uninitialised parameters on one device, of one dtype or in FP8."""

    def __init__(self, dtype: torch.dtype, device: torch.device, formats: LinearFormats, group: Group) -> None:
        self.dtype = dtype
        self.device = device
        self.formats = formats
        self.group = group

    def tensor(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def linear(self, outputs: int, inputs: int, *modules: str, bias: bool = False, partial: bool = False) -> Linear:
        """A linear fused of these modules of the checkpoint. `partial`: its inputs are split over the ranks; the first
        one has the bias, the others zeros."""
        own_bias = self.tensor(outputs).zero_() if bias else None
        group = self.group if partial else ALONE
        if not self.formats.is_fp8(*modules):
            return Linear(self.tensor(outputs, inputs), own_bias, group=group)
        weight = torch.empty((outputs, inputs), dtype=FP8, device=self.device)
        scale = torch.empty(outputs, dtype=torch.float32, device=self.device)
        return Linear(weight, own_bias, scale, self.dtype, group=group)


class Attention:
    def __init__(self, index: int, shard: Shard, make: Parameters) -> None:
        arch = shard.local
        self.shard = shard
        self.arch = arch
        self.window = arch.sliding_windows[index]
        name = f"model.layers.{index}.self_attn"
        fused = (f"{name}.q_proj", f"{name}.k_proj", f"{name}.v_proj")
        self.qkv = make.linear(arch.q_size + 2 * arch.kv_size, arch.hidden_size, *fused, bias=arch.qkv_bias)
        self.o = make.linear(arch.hidden_size, arch.q_size, f"{name}.o_proj", bias=arch.o_bias, partial=True)
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

    def checkpoint_parts(self) -> dict[str, Part]:
        q, kv = self.shard.heads * self.arch.head_dim, self.shard.kv_heads * self.arch.head_dim
        parts = _by_outputs(self.qkv, {"q_proj": q, "k_proj": kv, "v_proj": kv})
        parts |= _by_inputs(self.o, "o_proj", q, self.shard.rank)
        if self.q_norm is not None and self.k_norm is not None:
            parts |= {"q_norm.weight": Part(self.q_norm.weight), "k_norm.weight": Part(self.k_norm.weight)}
        return parts


class MLP:
    def __init__(self, index: int, shard: Shard, make: Parameters) -> None:
        arch = shard.local
        self.shard = shard
        self.size = arch.intermediate_size
        name = f"model.layers.{index}.mlp"
        fused = (f"{name}.gate_proj", f"{name}.up_proj")
        self.gate_up = make.linear(2 * self.size, arch.hidden_size, *fused, bias=arch.mlp_bias)
        self.down = make.linear(arch.hidden_size, self.size, f"{name}.down_proj", bias=arch.mlp_bias, partial=True)

    def __call__(self, x: Tensor) -> Tensor:
        gate_up = self.gate_up(x)
        gate, up = gate_up[:, : self.size], gate_up[:, self.size :]
        return self.down(functional.silu(gate).mul_(up))

    def checkpoint_parts(self) -> dict[str, Part]:
        inner = self.shard.inner
        parts = _by_outputs(self.gate_up, {"gate_proj": inner, "up_proj": inner})
        return parts | _by_inputs(self.down, "down_proj", inner, self.shard.rank)


class DecoderLayer:
    def __init__(self, index: int, shard: Shard, make: Parameters) -> None:
        arch = shard.local
        self.attention = Attention(index, shard, make)
        self.mlp = MLP(index, shard, make)
        self.input_norm = RMSNorm(make.tensor(arch.hidden_size), arch.rms_norm_eps)
        self.post_norm = RMSNorm(make.tensor(arch.hidden_size), arch.rms_norm_eps)

    @property
    def linears(self) -> tuple[Linear, ...]:
        return (self.attention.qkv, self.attention.o, self.mlp.gate_up, self.mlp.down)

    @property
    def norms(self) -> tuple[RMSNorm, ...]:
        heads = (norm for norm in (self.attention.q_norm, self.attention.k_norm) if norm is not None)
        return (self.input_norm, self.post_norm, *heads)

    def forward_(
        self, hidden: Tensor, cos: Tensor, sin: Tensor, slots: Tensor, plan: AttentionPlan, kv: Tensor
    ) -> None:
        """Add this layer to `hidden` [T, hidden_size] in place."""
        hidden.add_(self.attention(self.input_norm(hidden), cos, sin, slots, plan, kv))
        hidden.add_(self.mlp(self.post_norm(hidden)))

    def checkpoint_parts(self) -> dict[str, Part]:
        return {
            **{f"self_attn.{name}": part for name, part in self.attention.checkpoint_parts().items()},
            **{f"mlp.{name}": part for name, part in self.mlp.checkpoint_parts().items()},
            "input_layernorm.weight": Part(self.input_norm.weight),
            "post_attention_layernorm.weight": Part(self.post_norm.weight),
        }


class LlamaModel:
    def __init__(
        self,
        arch: Architecture,
        dtype: torch.dtype,
        device: torch.device,
        max_positions: int,
        formats: LinearFormats | None = None,
        group: Group = ALONE,
        *,
        reduces_head: bool = False,
    ) -> None:
        """`arch` is the whole model's; `group`: the ranks that share it. `reduces_head`: `reduce_head` will be called.
        A reduced head is small, and whole on every rank."""
        make = Parameters(dtype, device, formats or LinearFormats(), group)
        shard = shard_model(arch, group.rank, group.size)
        self.arch = arch = shard.local
        self.group = ALONE if reduces_head else group  # of the head
        self._tokens = Span(0, arch.vocab_size, arch.vocab_size) if reduces_head else shard.tokens
        # With rows behind the last token's, so that every rank's share of a tied head has the same size.
        self._table = make.tensor(max(arch.vocab_size, self.group.size * shard.head_rows), arch.hidden_size)
        self._table[arch.vocab_size :].zero_()
        self.embedding = self._table[: arch.vocab_size]
        self.layers = [DecoderLayer(index, shard, make) for index in range(arch.num_layers)]
        self.norm = RMSNorm(make.tensor(arch.hidden_size), arch.rms_norm_eps)
        # A tied FP8 head is a copy of its own, made by pack(): the embedding keeps its dtype.
        self._ties_head = arch.tied_embeddings and not make.formats.head
        head_rows = arch.draft_vocab_size or (arch.vocab_size if reduces_head else shard.head_rows)
        self._own_rows = self._table[self.group.rank * head_rows :][:head_rows]  # of a tied head
        self.head = Linear(self._own_rows) if self._ties_head else make.linear(head_rows, arch.hidden_size, HEAD)
        if not self._ties_head:
            self.head.weight[self._tokens.length :].zero_()
        self.head_tokens: Tensor | None = None  # [N] int64: the tokens that the head's rows are for; None: all
        self.rotary = rotary_table(arch.rope, arch.head_dim, max_positions).to(device, dtype)
        self.kv_scales = torch.ones(arch.num_layers, 2)  # [layers, (key, value)]: what one unit of an FP8 cache means

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
        return self.scores(hidden).float()

    def scores(self, hidden: Tensor) -> Tensor:
        """[L, hidden_size] -> [L, vocab_size] in the model's dtype; minus infinity where a reduced head has no row."""
        scores = self.head(hidden)
        if self.head_tokens is None:
            return self.group.all_gather(scores)[:, : self.arch.vocab_size] if self.group.size > 1 else scores
        wide = scores.new_full((scores.shape[0], self.arch.vocab_size), float("-inf"))
        return wide.index_copy_(1, self.head_tokens, scores)

    def reduce_head(self, tokens: Tensor, *, cut: bool) -> None:
        """From now on the head is for `tokens` [N] alone, ascending. `cut`: it has rows for all, and most are dropped.

        Called before `pack`, of a model that was made for it.
        """
        self.head_tokens = tokens.to(self.embedding.device)
        if cut:
            scale = self.head.weight_scale
            self.head = Linear(
                self.head.weight.index_select(0, self.head_tokens),
                weight_scale=None if scale is None else scale.index_select(0, self.head_tokens),
                out_dtype=self.head.out_dtype,
            )

    def pack(self) -> None:
        """Bring every linear into its fastest form; called once, after loading, one weight at a time."""
        if self.arch.tied_embeddings and self.head.weight_scale is not None:
            rows = self._own_rows if self.head_tokens is None else self.embedding.index_select(0, self.head_tokens)
            quantized, scales = quantize_weight(rows)
            self.head.weight.copy_(quantized)
            self.head.weight_scale.copy_(scales)
        for layer in self.layers:
            for linear in layer.linears:
                linear.pack()
        self.head.pack()

    @property
    def num_bytes(self) -> int:
        """Of all parameters in the form they have now; what is shared (a tied head) counts once."""
        linears = [linear for layer in self.layers for linear in layer.linears]
        norms = [norm.weight for layer in self.layers for norm in layer.norms]
        head = 0 if self.head.weight is self._own_rows else self.head.num_bytes
        return (
            self._table.nbytes
            + head
            + sum(linear.num_bytes for linear in linears)
            + sum(weight.nbytes for weight in [*norms, self.norm.weight])
        )

    def checkpoint_parts(self) -> dict[str, Part]:
        """Valid until `pack`. Every tensor name of the checkpoint, with the memory it is loaded into."""
        parts = {"model.embed_tokens.weight": Part(self.embedding), "model.norm.weight": Part(self.norm.weight)}
        if not self.arch.tied_embeddings:
            cut = Cut(0, self._tokens) if self.group.size > 1 else None
            rows, scale = self.head.weight[: self._tokens.length], self.head.weight_scale
            parts[f"{HEAD}.weight"] = Part(rows, None if scale is None else scale[: self._tokens.length], cut=cut)
        for index, layer in enumerate(self.layers):
            prefix = f"model.layers.{index}"
            parts |= {f"{prefix}.{name}": part for name, part in layer.checkpoint_parts().items()}
            for column, name in enumerate(("k_scale", "v_scale")):
                scale = self.kv_scales[index, column : column + 1]
                parts[f"{prefix}.self_attn.{name}"] = Part(scale, optional=True)
        return parts


def _by_outputs(linear: Linear, spans: dict[str, Span]) -> dict[str, Part]:
    """The rows of a fused projection by the names they have in the checkpoint."""
    parts, start = {}, 0
    for name, span in spans.items():
        end = start + span.length
        scale = linear.weight_scale[start:end] if linear.weight_scale is not None else None
        cut = Cut(0, span) if span.length < span.full else None
        parts[f"{name}.weight"] = Part(linear.weight[start:end], scale, cut=cut)
        if linear.bias is not None:
            parts[f"{name}.bias"] = Part(linear.bias[start:end], cut=cut)
        start = end
    return parts


def _by_inputs(linear: Linear, name: str, span: Span, rank: int) -> dict[str, Part]:
    """A projection whose inputs are split over the ranks; its outputs, their scales and the bias are not."""
    cut = Cut(1, span) if span.length < span.full else None
    parts = {f"{name}.weight": Part(linear.weight, linear.weight_scale, cut=cut)}
    if linear.bias is not None:
        nothing = Cut(0, Span(0, 0, linear.bias.shape[0]))  # the bias is added once, by the first rank
        parts[f"{name}.bias"] = Part(linear.bias[:0], cut=nothing) if rank else Part(linear.bias)
    return parts
