"""The decoder's forward with fused kernels over a paged pool: what a GPU runs.

The arithmetic is that of models/llama.py, cut at other places so that a layer is nine launches: each norm takes the
residual addition before it and the quantisation after it, rotary embedding writes the cache as well, attention hands
over quantised rows, and the activation quantises what it made.

Contract
- Every index lives on the device and no step depends on its value, so that the forward can be captured in a CUDA
  graph; `PagedBatch` says how rows lie in the batch.
- A projection is fed quantised rows if its weights are FP8, and rows in the model's dtype otherwise. What it makes may
  owe its scales to the norm or the activation that reads it (`Product`).
- A token whose slot is 0 (the null block's) is computed and its key and value are never read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from paceline.kernels import decode_attention as one_launch
from paceline.kernels.activation import silu_mul, silu_mul_quant
from paceline.kernels.fp8 import QuantizedRows
from paceline.kernels.norm_quant import add_rms_norm, add_rms_norm_quant
from paceline.kernels.paged_attention import paged_attention
from paceline.kernels.prefill_attention import prefill_attention
from paceline.kernels.product import Product
from paceline.kernels.rotary_kv import rotary_kv_write_
from paceline.layers.linear import Linear
from paceline.layers.norm import RMSNorm
from paceline.models.llama import MLP, Attention, DecoderLayer, LlamaModel

Rows = Tensor | QuantizedRows


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedBatch:
    """T tokens of R rows, end to end.

    `query_starts` is None where every row has the same `max_query_len` tokens (decoding, verification), but for the
    last `num_single` rows, which have one each.
    """

    token_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64; below 0: padding, nothing is stored and attention gives 0
    slots: Tensor  # [T] int64
    block_tables: Tensor  # [R, W] int32
    kv_lens: Tensor  # [R] int32: positions that a row's last token sees, itself included
    max_query_len: int
    query_starts: Tensor | None = None  # [R + 1] int32
    max_kv_len: int | None = None  # a bound on kv_lens, by which attention is split; None: what the tables hold
    num_single: int = 0

    def parts(self) -> list[PagedBatch]:
        """Rows of as many tokens each, in order; this one alone if all have."""
        if not self.num_single:
            return [self]
        rows = self.kv_lens.shape[0] - self.num_single
        tokens = rows * self.max_query_len
        return [
            self._part(slice(tokens), slice(rows), self.max_query_len),
            self._part(slice(tokens, None), slice(rows, None), 1),
        ]

    def _part(self, tokens: slice, rows: slice, query_len: int) -> PagedBatch:
        return PagedBatch(
            token_ids=self.token_ids[tokens], positions=self.positions[tokens], slots=self.slots[tokens],
            block_tables=self.block_tables[rows], kv_lens=self.kv_lens[rows], max_query_len=query_len,
            max_kv_len=self.max_kv_len,
        )  # fmt: skip


def forward(model: LlamaModel, batch: PagedBatch, kv_layers: list[Tensor], only: Sequence[int] | None = None) -> Tensor:
    """Final hidden states [T, hidden_size], normed. Writes the tokens' keys and values into `kv_layers`.

    `only`: these layers alone, to see every kernel launched without the time of all.
    """
    residual = functional.embedding(batch.token_ids, model.embedding)
    delta: Product | None = None
    parts = batch.parts()
    scales = model.kv_scales.tolist()
    for index in range(len(model.layers)) if only is None else only:
        delta = _layer(model.layers[index], delta, residual, model.rotary, parts, kv_layers[index], scales[index])
    assert delta is not None, "a model has at least one layer"
    return add_rms_norm(delta, residual, model.norm.weight, model.norm.eps)


def one_of_each_kind(model: LlamaModel) -> list[int]:
    """Layers that together launch every kernel of the model: the first, which adds nothing up, and one of each kind."""
    kinds: dict[object, int] = {}
    for index, layer in enumerate(model.layers[1:], start=1):
        formats = tuple(linear.is_fp8 for linear in layer.linears)
        kinds.setdefault((layer.attention.window, formats, tuple(model.kv_scales[index].tolist())), index)
    return [0, *kinds.values()]


def _layer(
    layer: DecoderLayer, delta: Product | None, residual: Tensor, rotary: Tensor, parts: list[PagedBatch], kv: Tensor,
    kv_scales: list[float],
) -> Product:  # fmt: skip
    """Add `delta`, what the layer before made, to `residual` in place; return what this layer makes."""
    x = _norm(layer.input_norm, delta, residual, layer.attention.qkv)
    attended = _attention(layer.attention, x, rotary, parts, kv, *kv_scales)
    x = _norm(layer.post_norm, attended, residual, layer.mlp.gate_up)
    return _mlp(layer.mlp, x)


def _norm(norm: RMSNorm, delta: Product | None, residual: Tensor, feeds: Linear) -> Rows:
    x: Tensor | Product = residual if delta is None else delta
    added_to = None if delta is None else residual
    if feeds.is_fp8:
        return add_rms_norm_quant(x, added_to, norm.weight, norm.eps)[0]
    return add_rms_norm(x, added_to, norm.weight, norm.eps)


def _attention(
    attention: Attention, x: Rows, rotary: Tensor, parts: list[PagedBatch], kv: Tensor, k_scale: float, v_scale: float
) -> Product:
    qkv = attention.qkv(x)  # [T, q_size + 2 * kv_size]
    if len(parts) == 1:
        return attention.o.product(_attended(attention, qkv, rotary, parts[0], kv, k_scale, v_scale))
    lengths = [part.token_ids.shape[0] for part in parts]
    return attention.o.product(
        _joined([
            _attended(attention, rows, rotary, part, kv, k_scale, v_scale)
            for rows, part in zip(torch.split(qkv, lengths), parts, strict=True)
        ])
    )  # fmt: skip


def _attended(
    attention: Attention, qkv: Tensor, rotary: Tensor, batch: PagedBatch, kv: Tensor, k_scale: float, v_scale: float
) -> Rows:
    """What the output projection is fed. Writes the keys and values."""
    arch = attention.arch
    if k_scale == v_scale == 1.0 and _in_one_launch(attention, qkv, batch, kv):
        mixed, amax = one_launch.decode_attention(
            qkv, rotary, batch.positions, batch.slots, kv, batch.block_tables, batch.kv_lens, arch.num_heads,
            batch.max_query_len, max_kv_len=batch.max_kv_len,
        )  # fmt: skip
        return one_launch.quantize_tokens(mixed, amax) if attention.o.is_fp8 else mixed
    rotary_kv_write_(
        qkv, rotary, batch.positions, batch.slots, kv, arch.num_heads, arch.num_kv_heads,
        q_norm=attention.q_norm.weight if attention.q_norm else None,
        k_norm=attention.k_norm.weight if attention.k_norm else None,
        eps=arch.rms_norm_eps, k_scale=k_scale, v_scale=v_scale,
    )  # fmt: skip
    queries = qkv.view(qkv.shape[0], -1, arch.head_dim)[:, : arch.num_heads]
    if batch.query_starts is not None:
        return prefill_attention(
            queries, kv, batch.block_tables, batch.query_starts, batch.kv_lens, batch.max_query_len, attention.window,
            k_scale=k_scale, v_scale=v_scale,
        )  # fmt: skip
    attended = paged_attention(
        queries, kv, batch.block_tables, batch.kv_lens, batch.max_query_len, attention.window,
        k_scale=k_scale, v_scale=v_scale, quantize=attention.o.is_fp8, max_kv_len=batch.max_kv_len,
    )  # fmt: skip
    return QuantizedRows(*attended) if isinstance(attended, tuple) else attended


def _joined(parts: list[Rows]) -> Rows:
    tensors = [part for part in parts if isinstance(part, Tensor)]
    if len(tensors) == len(parts):
        return torch.cat(tensors)
    rows = [part for part in parts if isinstance(part, QuantizedRows)]
    data = torch.cat([part.data.view(torch.uint8) for part in rows]).view(rows[0].data.dtype)
    return QuantizedRows(data, torch.cat([part.scale for part in rows]))


def _in_one_launch(attention: Attention, qkv: Tensor, batch: PagedBatch, kv: Tensor) -> bool:
    if batch.query_starts is not None or attention.window is not None:
        return False
    if attention.q_norm is not None or attention.k_norm is not None:
        return False
    arch, query_len = attention.arch, batch.max_query_len
    queries = arch.num_heads // arch.num_kv_heads * query_len
    return one_launch.is_faster(batch.kv_lens.shape[0], arch.num_kv_heads, arch.head_dim, queries) and one_launch.fits(
        qkv, kv, arch.num_heads, arch.num_kv_heads, query_len
    )


def _mlp(mlp: MLP, x: Rows) -> Product:
    gate_up = mlp.gate_up.product(x)
    return mlp.down.product(silu_mul_quant(gate_up) if mlp.down.is_fp8 else silu_mul(gate_up))
