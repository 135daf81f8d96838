"""The target writes conversations: a batched decoder for thousands of equally long rows.

All rows stand at the same position, so there is no padding, no paging and no mask, and one CUDA graph of
one step serves the whole generation. Rows speak freely or follow a script (chat markup, openers); when a
turn ends the script for the next turn begins, so no position is wasted. The last hidden states are kept:
the teacher then costs a training step only its head.

Random numbers are counters: the noise of a token is a hash of (seed, row, position, token).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.distill import decode_attention, sampling
from paceline.distill.model import Layer, Llama, rotary_table, rotate
from paceline.distill.prompts import ChatFormat, Scripts

USER, ASSISTANT = 0, 1


@dataclass(frozen=True, slots=True)
class Rollout:
    """Rows of text. Hidden state t is the law of token t+1; the buffers are the decoder's: copy to keep."""

    tokens: Tensor  # [B, L] int64
    is_answer: Tensor  # [B, L] bool: sampled in the assistant's turn, its closing token included
    hidden: Tensor | None  # [B, L, H], after the final norm; the last position is not computed
    temperature: Tensor  # [B], of the assistant's turns


class Decoder(Protocol):
    """Continues `rows` beginnings to `length` tokens; BatchDecoder and engine_decoder.EngineDecoder do."""

    rows: int
    length: int

    def generate(
        self, prefix: Tensor, temperature: Tensor, *, seed: int, role: int, open_turns: bool
    ) -> Rollout: ...  # see BatchDecoder.generate


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)


class StepLayer:
    """One layer's weights for a step of one token a row: merged projections, two fused halves."""

    def __init__(self, layer: Layer) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.shape = attention.shape
        self.norms = layer.input_layernorm.weight.detach(), layer.post_attention_layernorm.weight.detach()
        projections = (attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight)
        self.qkv = torch.cat(projections).detach()
        self.out = attention.o_proj.weight.detach()
        self.gate_up = torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight)).detach()
        self.down = mlp.down_proj.weight.detach()


def before_attention(
    x: Tensor, norm: Tensor, qkv: Tensor, cos: Tensor, sin: Tensor, heads: int, kv_heads: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """x [B, hidden] -> queries [B, heads, D], keys and values [B, kv_heads, D], rotated, contiguous."""
    merged = (_norm(x, norm, eps) @ qkv.T).view(x.shape[0], heads + 2 * kv_heads, -1)
    queries, keys, values = torch.split(merged, [heads, kv_heads, kv_heads], dim=1)
    return rotate(queries, cos, sin).contiguous(), rotate(keys, cos, sin).contiguous(), values.contiguous()


def after_attention(
    x: Tensor, mixed: Tensor, out: Tensor, norm: Tensor, gate_up: Tensor, down: Tensor, eps: float
) -> Tensor:
    x = x + mixed.flatten(1) @ out.T
    gate, up = (_norm(x, norm, eps) @ gate_up.T).chunk(2, dim=-1)
    return x + (F.silu(gate) * up) @ down.T


def _head(hidden: Tensor, table: Tensor) -> Tensor:
    """Logits in fp32: in BF16 the two best tokens would often tie."""
    if hidden.is_cuda and hidden.dtype != torch.float32:
        return torch.mm(hidden, table.T, out_dtype=torch.float32)
    return (hidden @ table.T).float()


class CacheMemory:
    """Key, value and hidden storage for rows x length positions, shared by decoders of one product."""

    def __init__(self, target: Llama, positions: int) -> None:
        shape, like = target.shape, target.table
        per_layer = positions * shape.num_kv_heads * shape.head_dim
        self.positions = positions
        self.keys = [like.new_zeros(per_layer) for _ in range(shape.num_layers)]
        self.values = [like.new_zeros(per_layer) for _ in range(shape.num_layers)]
        self.hidden = like.new_zeros(positions * shape.hidden_size)


class BatchDecoder:
    """Generates `rows` rows of `length` tokens; on a GPU the step is compiled and captured."""

    def __init__(
        self, target: Llama, format: ChatFormat, scripts: Scripts, memory: CacheMemory,
        *, rows: int, length: int, user_temperature: float,
    ) -> None:  # fmt: skip
        device, shape = target.table.device, target.shape
        self.target, self.shape, self.format = target, shape, format
        self.rows, self.length, self.user_temperature = rows, length, user_temperature
        cache = (rows, shape.num_kv_heads, length, shape.head_dim)
        self.keys = [flat[: rows * length * cache[1] * cache[3]].view(cache) for flat in memory.keys]
        self.values = [flat[: rows * length * cache[1] * cache[3]].view(cache) for flat in memory.values]
        self.hidden = memory.hidden[: rows * length * shape.hidden_size].view(rows, length, shape.hidden_size)
        self.layers = [StepLayer(layer) for layer in target.layers]  # type: ignore[arg-type]
        self.cos, self.sin = rotary_table(shape, length, device)
        self.script_table = scripts.table.to(device)
        self.first, self.following = scripts.first.to(device), scripts.following.to(device)
        self.attend, self.draw = decode_attention.best_for(device), sampling.best_for(device)

        def integers(*size: int) -> Tensor:
            return torch.zeros(size, dtype=torch.int64, device=device)

        self.tokens, self.is_answer = integers(rows, length), torch.zeros_like(integers(rows, length), dtype=torch.bool)
        self.given = torch.full_like(self.tokens, -1)  # tokens of ragged beginnings; -1 from where a row is free
        self.position, self.seed = integers(1), integers(1)
        self.role, self.script, self.cursor, self.next_script = (integers(rows) for _ in range(4))
        self.temperature = torch.zeros(rows, device=device)
        self.captures = device.type == "cuda"
        self.before, self.after = before_attention, after_attention
        if self.captures:
            self.before = torch.compile(before_attention, dynamic=False)
            self.after = torch.compile(after_attention, dynamic=False)
        self.graph: torch.cuda.CUDAGraph | None = None

    @torch.no_grad()
    def generate(self, prefix: Tensor, temperature: Tensor, *, seed: int, role: int, open_turns: bool) -> Rollout:
        """Continue prefix [rows, P], padded with -1 on the right, to the full length. `role`: whose turn the prefix
        ends in; `open_turns`: begin the first user turn with an opener."""
        generator = torch.Generator(self.tokens.device).manual_seed(seed)

        def pick(scripts: Tensor) -> Tensor:
            where = torch.randint(len(scripts), (self.rows,), generator=generator, device=scripts.device)
            return scripts[where]

        self.capture()
        common = int((prefix >= 0).sum(1).min())  # what every row has is read at once, the rest token by token
        self.tokens[:, :common] = prefix[:, :common]
        self.given.fill_(-1)
        self.given[:, : prefix.shape[1]] = prefix
        self.is_answer.zero_()
        self.role.fill_(role)
        self.cursor.zero_()
        self.script.copy_(pick(self.first) if open_turns else torch.zeros_like(self.script))
        self.next_script.copy_(pick(self.following))
        self.temperature.copy_(temperature)
        self.seed.fill_(seed)
        self._prefill(common - 1)
        self.position.fill_(common - 1)
        for _ in range(self.length - common):
            self.graph.replay() if self.graph else self._step()
        return Rollout(self.tokens, self.is_answer, self.hidden, self.temperature)

    def _prefill(self, count: int, rows_at_once: int = 64) -> None:
        """Keys, values and hidden states of the first `count` positions, a few rows at a time."""
        if count == 0:
            return
        cos, sin = self.cos[:count], self.sin[:count]
        for start in range(0, self.rows, rows_at_once):
            rows = slice(start, start + rows_at_once)
            x = self.target.embed_tokens(self.tokens[rows, :count])
            for layer, keys, values in zip(self.target.layers, self.keys, self.values, strict=True):
                x, keys[rows, :, :count], values[rows, :, :count] = layer(x, cos, sin)
            self.hidden[rows, :count] = self.target.norm(x)

    def capture(self) -> None:
        """Warm up and capture one step; later calls do nothing."""
        if not self.captures or self.graph is not None:
            return
        self.position.zero_()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._step()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._step()

    def _step(self) -> None:
        """Feed the token at `position`, write its hidden state and the next token."""
        shape, position = self.shape, self.position
        x = self.target.embed_tokens(self.tokens.index_select(1, position).squeeze(1))
        cos, sin = self.cos.index_select(0, position), self.sin.index_select(0, position)
        for layer, keys, values in zip(self.layers, self.keys, self.values, strict=True):
            query, key, value = self.before(
                x, layer.norms[0], layer.qkv, cos, sin, shape.num_heads, shape.num_kv_heads, shape.rms_norm_eps
            )
            mixed = self.attend(query, key, value, keys, values, position)
            x = self.after(x, mixed, layer.out, layer.norms[1], layer.gate_up, layer.down, shape.rms_norm_eps)
        hidden = self.target.norm(x)
        self.hidden.index_copy_(1, position, hidden.unsqueeze(1))
        temperature = torch.where(self.role == ASSISTANT, self.temperature, self.user_temperature)
        logits = _head(hidden, self.target.table)
        self._advance(self.draw(logits, temperature, sampling.row_keys(self.rows, self.seed, position)))

    def _advance(self, sampled: Tensor) -> None:
        """A given beginning wins over a script, a script over the sample; a closing token hands the row over."""
        self.position.add_(1)
        given = self.given.index_select(1, self.position).squeeze(1)
        scripted = self.script_table[self.script, self.cursor]
        begun, unscripted = given < 0, scripted < 0
        free = begun & unscripted
        token = torch.where(begun, torch.where(unscripted, sampled, scripted), given)
        answers = free & (self.role == ASSISTANT)
        ended = free & (token == self.format.end)
        following = torch.where(self.role == ASSISTANT, self.next_script, 1)
        self.script.copy_(torch.where(ended, following, self.script))
        self.cursor.copy_(torch.where(ended, 0, self.cursor + (begun & ~unscripted).long()))
        self.role.copy_(torch.where(ended, 1 - self.role, self.role))
        self.tokens.index_copy_(1, self.position, token.unsqueeze(1))
        self.is_answer.index_copy_(1, self.position, answers.unsqueeze(1))
