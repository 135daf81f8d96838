"""The decoder's forward on a CPU in C++: one call a pass instead of some 500 operators (kernels/cpu_decoder.py).

The arithmetic is that of models/llama.py with activations in float32, whatever dtype the weights and the cache have.
So in bfloat16 too a row has the same bits however many are computed with it, and speculation changes no greedy token.

Contract
- `native_forward(model)` takes over the weights of a loaded model, one linear at a time, and leaves it its embedding;
  or it returns None, and the model is as it was.
- Not done here, and left to llama.py: models shared by ranks (sums over ranks lie between the products), FP8,
  float16, heads whose size is not a multiple of 8, and machines without a C++ compiler, which the log says once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from paceline.kernels.cpu_decoder import CpuDecoder, CpuLayer, PackedLinear, pack_gate_up, pack_linear, widened_inputs
from paceline.kernels.cpu_memory import WeightMemory
from paceline.kernels.cpu_program import NoCompilerError, cpu_program
from paceline.layers.linear import Linear
from paceline.layers.norm import RMSNorm
from paceline.layers.rotary import rotary_table
from paceline.models.llama import DecoderLayer, LlamaModel

logger = logging.getLogger(__name__)

_DTYPES = (torch.float32, torch.bfloat16)
_HEAD_DIM_UNIT = 8


class NativeForward:
    def __init__(self, model: LlamaModel) -> None:
        """Empties the model's linears."""
        arch = model.arch
        memory = WeightMemory()
        layers = [_take_layer(layer, memory) for layer in model.layers]
        head = pack_linear(model.head.take_weight()).kept_in(memory)
        self._linears = [linear for layer in layers for linear in (layer.qkv, layer.o, layer.gate_up, layer.down)]
        self._linears.append(head)
        rotary = model.rotary
        if rotary.dtype != torch.float32:  # rounded: rotations here are those of a float32 model
            rotary = rotary_table(arch.rope, arch.head_dim, rotary.shape[0])
        self._decoder = CpuDecoder(
            layers, head, norm=_float(model.norm), rotary=rotary, embedding=model.embedding,
            head_tokens=model.head_tokens, num_heads=arch.num_heads, num_kv_heads=arch.num_kv_heads,
            head_dim=arch.head_dim, norm_epsilon=arch.rms_norm_eps,
        )  # fmt: skip
        self.forward = self._decoder.forward
        self.draft = self._decoder.draft

    @property
    def num_bytes(self) -> int:
        """Of what it took over, in the form it has now."""
        return sum(linear.num_bytes for linear in self._linears)

    @property
    def words(self) -> str:
        """How the weights are held: bfloat16, float32, or both."""
        return " and ".join(sorted({linear.format_name for linear in self._linears}))


def native_forward(model: LlamaModel) -> NativeForward | None:
    """None: this model, or this machine, has none."""
    return NativeForward(model) if _is_native(model) and _compiles() else None


def _is_native(model: LlamaModel) -> bool:
    linears = [linear for layer in model.layers for linear in layer.linears]
    return (
        model.embedding.device.type == "cpu"
        and model.embedding.dtype in _DTYPES
        and model.arch.head_dim % _HEAD_DIM_UNIT == 0
        and all(linear.group.size == 1 and not linear.is_fp8 for linear in [*linears, model.head])
        and model.group.size == 1
    )


@cache
def _compiles() -> bool:
    try:
        cpu_program()
    except NoCompilerError as error:
        logger.warning(
            "The C++ forward for CPUs cannot be used, and steps take two to three times as long: %s.",
            str(error).rstrip("."),
        )
        return False
    return True


def _take_layer(layer: DecoderLayer, memory: WeightMemory) -> CpuLayer:
    attention, mlp = layer.attention, layer.mlp
    gate_up = _take(mlp.gate_up, memory, pack_gate_up)
    down = mlp.down.take_weight()
    return CpuLayer(
        qkv=_take(attention.qkv, memory),
        o=_take(attention.o, memory),
        gate_up=gate_up,
        down=pack_linear(widened_inputs(down, gate_up.outputs // 2), mlp.down.bias).kept_in(memory),
        input_norm=_float(layer.input_norm),
        post_norm=_float(layer.post_norm),
        q_norm=_float(attention.q_norm) if attention.q_norm else None,
        k_norm=_float(attention.k_norm) if attention.k_norm else None,
        window=attention.window,
    )


def _take(
    linear: Linear, memory: WeightMemory, pack: Callable[[Tensor, Tensor | None], PackedLinear] = pack_linear
) -> PackedLinear:
    return pack(linear.take_weight(), linear.bias).kept_in(memory)


def _float(norm: RMSNorm) -> Tensor:
    return norm.weight.to(torch.float32)
