"""What a decode step cannot be faster than: the bytes that it must read, over the bandwidth of the device.

A step reads every linear of the target once and the keys and values of all its rows; before that the draft does the
same K times. Activations, embeddings (a few rows) and norms are left out, and so is arithmetic: with many rows or
drafts a step is limited by products, and the ceiling is then out of reach.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.models.architecture import Architecture
from paceline.models.quantization import HEAD, LinearFormats


@dataclass(frozen=True, slots=True)
class ModelBytes:
    """weights: read by every pass; kv_per_position: read by every row, for each position it sees."""

    weights: int
    kv_per_position: int
    linear_parameters: int

    def per_pass(self, num_rows: int, num_positions: float) -> float:
        return self.weights + num_rows * num_positions * self.kv_per_position


def model_bytes(
    arch: Architecture, formats: LinearFormats, *, dtype_bytes: int, kv_bytes: int, head_rows: int | None = None
) -> ModelBytes:
    """`dtype_bytes` and `kv_bytes`: of one number in the model's dtype and in the cache. `arch` and `head_rows` (None:
    all tokens) are one rank's share where several share the model."""
    weights = parameters = 0
    for layer in range(arch.num_layers):
        for modules, outputs, inputs in layer_linears(arch, layer):
            parameters += outputs * inputs
            weights += linear_bytes(outputs, inputs, dtype_bytes, is_fp8=formats.is_fp8(*modules))
    weights += linear_bytes(head_rows or arch.vocab_size, arch.hidden_size, dtype_bytes, is_fp8=formats.is_fp8(HEAD))
    return ModelBytes(weights, 2 * arch.kv_size * arch.num_layers * kv_bytes, parameters)


def layer_linears(arch: Architecture, layer: int) -> list[tuple[tuple[str, ...], int, int]]:
    """(modules of the checkpoint, outputs, inputs) of the fused linears of one layer."""
    attention, mlp = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
    hidden, inner = arch.hidden_size, arch.intermediate_size
    return [
        (tuple(f"{attention}.{part}_proj" for part in "qkv"), arch.q_size + 2 * arch.kv_size, hidden),
        ((f"{attention}.o_proj",), hidden, arch.q_size),
        ((f"{mlp}.gate_proj", f"{mlp}.up_proj"), 2 * inner, hidden),
        ((f"{mlp}.down_proj",), hidden, inner),
    ]


def linear_bytes(outputs: int, inputs: int, dtype_bytes: int, *, is_fp8: bool) -> int:
    return outputs * inputs + 4 * outputs if is_fp8 else outputs * inputs * dtype_bytes


@dataclass(frozen=True, slots=True)
class Ceiling:
    target: ModelBytes
    draft: ModelBytes | None
    bandwidth: float  # bytes a second

    def step_bytes(self, batch: int, k: int, num_positions: float) -> float:
        draft = k * self.draft.per_pass(batch, num_positions) if self.draft is not None else 0.0
        return self.target.per_pass(batch, num_positions) + draft

    def step_seconds(self, batch: int, k: int, num_positions: float) -> float:
        return self.step_bytes(batch, k, num_positions) / self.bandwidth
