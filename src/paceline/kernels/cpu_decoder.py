"""The decoder's forward on a CPU as one call of C++ (cpu/decoder.cpp): its structures, its packed weights, the call.

Contract
- `pack_linear` and `pack_gate_up` give weights the form that cpu/product.h describes; a weight whose float32 numbers
  are all bfloat16 ones, as those of most checkpoints are, is held in 16 bits and computed with as before, bit for bit.
- `CpuDecoder.forward` writes keys and values into the pool and gives final logits; a row's bits depend on nothing but
  its own tokens. It holds no lock of Python's while it computes.
- `CpuDecoder.draft` is a forward and the greedy passes behind it in one call: the tokens that `forward`, called for
  each of them, would have found.

The torch reference is models/llama.py.
"""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from paceline.kernels.cpu_memory import WeightMemory
from paceline.kernels.cpu_program import cpu_program

PANEL = 16  # outputs that lie together
_FLOAT32, _BFLOAT16 = range(2)
_WORDS = {_FLOAT32: "float32", _BFLOAT16: "bfloat16"}


class _Linear(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("bias", ctypes.c_void_p),
        ("outputs", ctypes.c_int64), ("inputs", ctypes.c_int64), ("format", ctypes.c_int64),
    ]  # fmt: skip


class _Layer(ctypes.Structure):
    _fields_ = [
        *((name, _Linear) for name in ("qkv", "o", "gate_up", "down")),
        *((name, ctypes.c_void_p) for name in ("input_norm", "post_norm", "q_norm", "k_norm")),
        ("window", ctypes.c_int64),
    ]


class _Model(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in (
            "vocab_size", "hidden_size", "inner_size", "num_layers", "num_heads", "num_kv_heads", "head_dim",
        )),
        ("layers", ctypes.POINTER(_Layer)),
        ("norm", ctypes.c_void_p), ("rotary", ctypes.c_void_p),
        ("embedding", ctypes.c_void_p), ("embedding_is_bfloat16", ctypes.c_int64),
        ("head", _Linear), ("head_tokens", ctypes.c_void_p), ("norm_epsilon", ctypes.c_double),
    ]  # fmt: skip


class _Batch(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in (
            "num_tokens", "num_rows", "num_logits", "table_width", "block_size", "pool_is_bfloat16",
        )),
        *((name, ctypes.c_void_p) for name in (
            "token_ids", "positions", "slots", "tables", "query_lens", "logits_indices", "pool", "logits", "peaks",
            "likeliest", "hidden", "finite",
        )),
    ]  # fmt: skip


class _Drafts(ctypes.Structure):
    _fields_ = [
        ("most", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("rows", "counts", "starts", "token_ids", "finite")),
    ]


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """weights of `outputs` x `inputs` in panels; bias [16 * panels] float32."""

    data: Tensor
    bias: Tensor | None
    outputs: int
    inputs: int
    format: int

    @property
    def num_bytes(self) -> int:
        return self.data.nbytes + (self.bias.nbytes if self.bias is not None else 0)

    @property
    def format_name(self) -> str:
        return _WORDS[self.format]

    def kept_in(self, memory: WeightMemory) -> PackedLinear:
        return replace(self, data=memory.keep(self.data))

    def structure(self) -> _Linear:
        return _Linear(_address(self.data), _address(self.bias), self.outputs, self.inputs, self.format)


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuLayer:
    qkv: PackedLinear
    o: PackedLinear
    gate_up: PackedLinear
    down: PackedLinear
    input_norm: Tensor  # all norms float32
    post_norm: Tensor
    q_norm: Tensor | None
    k_norm: Tensor | None
    window: int | None

    def structure(self) -> _Layer:
        linears = [linear.structure() for linear in (self.qkv, self.o, self.gate_up, self.down)]
        norms = [_address(norm) for norm in (self.input_norm, self.post_norm, self.q_norm, self.k_norm)]
        return _Layer(*linears, *norms, self.window or 0)


def pack_linear(weight: Tensor, bias: Tensor | None = None) -> PackedLinear:
    """weight [n, k] float32 or bfloat16, bias [n]."""
    exact = _smallest(weight)
    return PackedLinear(_panels(exact), _padded_bias(bias), weight.shape[0], weight.shape[1], _format(exact))


def pack_gate_up(weight: Tensor, bias: Tensor | None = None) -> PackedLinear:
    """weight [2 * n, k]: gate, then up. Their panels alternate, so that one chunk of work has both."""
    exact = _smallest(weight)
    gate, up = (_panels(half) for half in exact.chunk(2))
    both = torch.stack((gate, up), dim=1).flatten(0, 1)
    biases = None
    if bias is not None:
        gates, ups = (_padded_bias(half) for half in bias.chunk(2))
        assert gates is not None
        assert ups is not None
        biases = torch.stack((gates.view(-1, PANEL), ups.view(-1, PANEL)), dim=1).flatten()
    return PackedLinear(both, biases, both.shape[0] * PANEL, weight.shape[1], _format(exact))


def widened_inputs(weight: Tensor, inputs: int) -> Tensor:
    """[n, k] -> [n, inputs] with zeros behind: what reads whole panels of another product's outputs."""
    return torch.nn.functional.pad(weight, (0, inputs - weight.shape[1]))


class CpuDecoder:
    """One model's forward. Holds what its structures point at."""

    def __init__(
        self, layers: list[CpuLayer], head: PackedLinear, *, norm: Tensor, rotary: Tensor, embedding: Tensor,
        head_tokens: Tensor | None, num_heads: int, num_kv_heads: int, head_dim: int, norm_epsilon: float,
    ) -> None:  # fmt: skip
        """rotary [positions, 2, head_dim] float32 (layers/rotary.py); embedding [V, hidden] float32 or bfloat16."""
        self._program = cpu_program()
        self._program.paceline_activations.restype = ctypes.c_void_p
        self._held = (layers, head, norm, rotary, embedding, head_tokens)
        self._vocab_size, self._hidden_size = embedding.shape
        self._model = _Model(
            vocab_size=self._vocab_size, hidden_size=self._hidden_size, inner_size=layers[0].down.inputs,
            num_layers=len(layers), num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim,
            layers=(_Layer * len(layers))(*(layer.structure() for layer in layers)),
            norm=_address(norm), rotary=_address(rotary), embedding=_address(embedding),
            embedding_is_bfloat16=embedding.dtype == torch.bfloat16, head=head.structure(),
            head_tokens=_address(head_tokens), norm_epsilon=norm_epsilon,
        )  # fmt: skip
        self._activations = ctypes.c_void_p(self._program.paceline_activations())
        weakref.finalize(self, self._program.paceline_release, self._activations)
        self._pool: tuple[list[Tensor], Any] | None = None

    def forward(
        self, token_ids: Tensor, positions: Tensor, slots: Tensor, tables: Tensor, query_lens: list[int],
        logits_indices: Tensor, pool: list[Tensor], *, hidden: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
        """Logits [L, V] float32 of the tokens asked for; [R] bool: did every token of a row stay finite; and of each
        row of logits the largest [L] (NaN if it has one) and the first token with it [L] int64.

        token_ids, positions, slots [T], tables [R, W] and logits_indices [L] are int64 and contiguous; `pool`: a
        layer's [blocks, block_size, 2, kv_heads, head_dim] each, float32 or bfloat16. `hidden` [T, hidden_size]
        float32 is filled with the final hidden states.
        """
        logits = torch.empty(len(logits_indices), self._vocab_size)
        peaks, likeliest = torch.empty(len(logits_indices)), torch.empty(len(logits_indices), dtype=torch.int64)
        lengths, finite = torch.tensor(query_lens), torch.ones(len(query_lens), dtype=torch.bool)
        batch = self._batch(
            token_ids, positions, slots, tables, lengths, logits_indices, pool, peaks, likeliest, finite
        )
        batch.logits, batch.hidden = _address(logits), _address(hidden)
        self._call(self._program.paceline_forward, ctypes.byref(batch))
        return logits, finite, peaks, likeliest

    def draft(
        self, token_ids: Tensor, positions: Tensor, slots: Tensor, tables: Tensor, query_lens: list[int],
        logits_indices: Tensor, pool: list[Tensor], rows: Tensor, counts: Tensor, starts: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """Greedy drafts [L, most] int64, padding -1, of the rows that `logits_indices` name the last tokens of; [R]
        bool: did every token of a row of the batch stay finite; [L] bool: did every drafted token's logits.

        `rows`, `counts`, `starts` [L] int64: a drafting row's place in the batch, how many drafts it gets (at least 1)
        and the position of the first; its table has the blocks for all of them but the last. The rest as in `forward`.
        """
        num_drafting = len(logits_indices)
        peaks, likeliest = torch.empty(num_drafting), torch.empty(num_drafting, dtype=torch.int64)
        lengths, finite = torch.tensor(query_lens), torch.ones(len(query_lens), dtype=torch.bool)
        batch = self._batch(
            token_ids, positions, slots, tables, lengths, logits_indices, pool, peaks, likeliest, finite
        )
        most = int(counts.max())
        drafted = torch.full((num_drafting, most), -1, dtype=torch.int64)
        has_finite_logits = torch.ones(num_drafting, dtype=torch.bool)
        drafts = _Drafts(most, *map(_address, (rows, counts, starts, drafted, has_finite_logits)))
        self._call(self._program.paceline_draft, ctypes.byref(batch), ctypes.byref(drafts))
        return drafted, finite, has_finite_logits

    def _batch(
        self, token_ids: Tensor, positions: Tensor, slots: Tensor, tables: Tensor, lengths: Tensor,
        logits_indices: Tensor, pool: list[Tensor], peaks: Tensor, likeliest: Tensor, finite: Tensor,
    ) -> _Batch:  # fmt: skip
        return _Batch(
            len(token_ids), len(lengths), len(logits_indices), tables.shape[1], pool[0].shape[1],
            pool[0].dtype == torch.bfloat16, _address(token_ids), _address(positions), _address(slots),
            _address(tables), _address(lengths), _address(logits_indices), self._pool_address(pool), None,
            _address(peaks), _address(likeliest), None, _address(finite),
        )  # fmt: skip

    def _call(self, function: Any, *what: Any) -> None:
        threads = ctypes.c_int(torch.get_num_threads())
        if function(ctypes.byref(self._model), *what, self._activations, threads) != 0:
            raise MemoryError("no memory for the activations of a forward pass; lower max_num_batched_tokens")

    def _pool_address(self, pool: list[Tensor]) -> int:
        """Of the layers' addresses; kept as long as the pool stays the same."""
        if self._pool is None or self._pool[0] is not pool:
            self._pool = (pool, (ctypes.c_void_p * len(pool))(*(layer.data_ptr() for layer in pool)))
        return ctypes.addressof(self._pool[1])


def _address(tensor: Tensor | None) -> int | None:
    if tensor is None:
        return None
    assert tensor.is_contiguous(), "the C++ code knows no strides"
    return tensor.data_ptr()


def _smallest(weight: Tensor) -> Tensor:
    """The same numbers in bfloat16 if it has them all, else in float32. NaN counts as a number that it has not."""
    narrow = weight.to(torch.bfloat16)
    return narrow if torch.equal(narrow.to(weight.dtype), weight) else weight.to(torch.float32)


def _format(weight: Tensor) -> int:
    return _BFLOAT16 if weight.dtype == torch.bfloat16 else _FLOAT32


def _panels(weight: Tensor) -> Tensor:
    """[n, k] -> [panels, k, 16]; in bfloat16 output j lies beside output j + 8."""
    outputs, inputs = weight.shape
    rows = torch.nn.functional.pad(weight, (0, 0, 0, -outputs % PANEL)).view(-1, PANEL, inputs)
    if weight.dtype == torch.bfloat16:
        rows = rows.view(-1, 2, PANEL // 2, inputs).transpose(1, 2).reshape(-1, PANEL, inputs)
    return rows.transpose(1, 2).contiguous()


def _padded_bias(bias: Tensor | None) -> Tensor | None:
    if bias is None:
        return None
    return torch.nn.functional.pad(bias.to(torch.float32), (0, -bias.shape[0] % PANEL))
