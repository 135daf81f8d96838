"""Fills a model's parameters, from *.safetensors or with seeded random numbers.

Contract
- One tensor of the checkpoint, or the piece of it that this rank holds, is in memory at a time beside the model. Names
  are checked in both directions before anything is copied: a missing tensor would leave garbage, an unexpected one
  means that the decoder does not compute what the checkpoint was trained for.
- What a tensor is in the file and what it is in the model are independent: FP8 goes into FP8 as it is, into another
  dtype by its scales, and any float is quantised on its way into FP8, on the device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from paceline.errors import UnsupportedModelError
from paceline.kernels.fp8 import quantize_weight
from paceline.models.draft_head import MAP_NAME
from paceline.models.sharding import Span
from paceline.models.support import weight_files

FP8 = torch.float8_e4m3fn
_IGNORED_SUFFIXES = ("rotary_emb.inv_freq", ".input_scale", ".act_scale", ".q_scale", ".q_proj.output_scale")
_SCALE_SUFFIX = "_scale"
_KV_SCALE_NAMES = {  # as compressed-tensors, newer and older quantisers call the scales of a layer's cache
    "self_attn.k_proj.k_scale": "self_attn.k_scale",
    "self_attn.v_proj.v_scale": "self_attn.v_scale",
    "self_attn.k_proj.output_scale": "self_attn.k_scale",
    "self_attn.v_proj.output_scale": "self_attn.v_scale",
}
_SHOWN = 5
_DUMMY_STD = 0.02
_DUMMY_CHUNK = 1 << 26  # random numbers made at a time on a GPU


@dataclass(frozen=True, slots=True)
class Cut:
    """A piece of a checkpoint's tensor: a span of its rows (0) or columns (1)."""

    dimension: int
    span: Span


@dataclass(frozen=True, slots=True)
class Part:
    """The memory that one tensor of the checkpoint goes into: rows of a parameter, often of a fused one."""

    data: Tensor
    scale: Tensor | None = None  # [n] float32, where data [n, k] is FP8
    optional: bool = False  # keeps its value if the checkpoint has no such tensor
    cut: Cut | None = None  # the piece of the tensor that belongs here; None: all of it

    @property
    def num_bytes(self) -> int:
        return self.data.nbytes + (self.scale.nbytes if self.scale is not None else 0)

    @property
    def full_shape(self) -> list[int]:
        """Of the tensor in the checkpoint."""
        shape = list(self.data.shape)
        if self.cut is not None:
            shape[self.cut.dimension] = self.cut.span.full
        return shape


@torch.no_grad()
def load_weights(parts: Mapping[str, Part], path: Path, *, tied_embeddings: bool) -> None:
    """Copy every tensor of the checkpoint at `path` into the part of its name."""
    where = _locate(path, tied_embeddings)
    scales = _take_scales(where, parts)
    _check_names(parts, set(where), path)
    for file in sorted(set(where.values())):
        with safe_open(file, framework="pt") as opened:
            for name in (name for name, holder in where.items() if holder == file):
                _Loading(name, path, parts[_part_name(name)]).fill(opened.get_slice(name), scales.get(name))


def _locate(path: Path, tied_embeddings: bool) -> dict[str, Path]:
    """Tensor name -> file. A tied head that was saved all the same is left out."""
    where: dict[str, Path] = {}
    for file in weight_files(path):
        try:
            with safe_open(file, framework="pt") as opened:
                where |= dict.fromkeys(opened.keys(), file)
        except Exception as error:  # the library's own error class is not public in every version
            raise UnsupportedModelError(f"{file} cannot be read: {error}. Download it again.") from None
    if tied_embeddings:
        where = {name: file for name, file in where.items() if not name.startswith("lm_head.")}
    where.pop(MAP_NAME, None)  # read by draft_head.py, which knows what it means
    return {name: file for name, file in where.items() if not name.endswith(_IGNORED_SUFFIXES)}


def _take_scales(where: dict[str, Path], parts: Mapping[str, Part]) -> dict[str, Tensor]:
    """Weight name -> its scales, which may lie in another file; their names are taken out of `where`."""
    names = [name + _SCALE_SUFFIX for name in where if name + _SCALE_SUFFIX in where and name in parts]
    scales = {}
    for file in {where[name] for name in names}:
        with safe_open(file, framework="pt") as opened:
            for name in (name for name in names if where[name] == file):
                scales[name.removesuffix(_SCALE_SUFFIX)] = opened.get_tensor(name)
    for name in names:
        del where[name]
    return scales


def _part_name(name: str) -> str:
    for suffix, known in _KV_SCALE_NAMES.items():
        if name.endswith(suffix):
            return name.removesuffix(suffix) + known
    return name


def _check_names(parts: Mapping[str, Part], found: set[str], path: Path) -> None:
    wanted = {name for name, part in parts.items() if not part.optional}
    unexpected = {name for name in found if _part_name(name) not in parts}
    problems = [
        f"{len(names)} {kind} ({_some(names)})"
        for kind, names in (("missing", wanted - found), ("unexpected", unexpected))
        if names
    ]
    if problems:
        raise UnsupportedModelError(f"{path}: the weights do not fit config.json: tensors {' and '.join(problems)}.")


def _some(names: set[str]) -> str:
    shown = sorted(names)[:_SHOWN]
    return ", ".join(shown) + (", …" if len(names) > _SHOWN else "")


@dataclass(frozen=True, slots=True)
class _Loading:
    """One tensor on its way into its part."""

    name: str
    path: Path
    part: Part

    def fill(self, stored: Any, scale: Tensor | None) -> None:
        """`stored`: the tensor as safetensors has it, of which only the part's piece is read."""
        data, rows = self.part.data, self.part.scale
        found, wanted = list(stored.get_shape()), self.part.full_shape
        if found != wanted and not (self.part.optional and math.prod(found) == data.numel()):
            raise UnsupportedModelError(
                f"{self.path}: tensor {self.name} has shape {found}; config.json asks for {wanted}."
            )
        if data.numel() == 0:
            return
        tensor = self._piece(stored)
        if tensor.dtype == FP8:
            self._fill_from_fp8(tensor, self._row_scales(tensor, scale))
        elif not tensor.is_floating_point() or tensor.element_size() < 2:
            raise UnsupportedModelError(
                f"{self.path}: tensor {self.name} is {tensor.dtype}; of quantised weights only FP8 "
                "(E4M3) can be loaded."
            )
        elif rows is not None:
            quantized, scales = quantize_weight(tensor.to(data.device))
            data.copy_(quantized)
            rows.copy_(scales)
        else:
            data.copy_(tensor.view(data.shape))

    def _piece(self, stored: Any) -> Tensor:
        cut = self.part.cut
        if cut is None:
            whole: Tensor = stored[...]
            return whole
        span = slice(cut.span.start, cut.span.start + cut.span.length)
        piece: Tensor = stored[span] if cut.dimension == 0 else stored[:, span]
        return piece

    def _fill_from_fp8(self, tensor: Tensor, scales: Tensor) -> None:
        data, rows = self.part.data, self.part.scale
        if rows is not None:
            data.copy_(tensor)
            rows.copy_(scales)
        else:
            device = data.device
            data.copy_(tensor.to(device).to(torch.float32).mul_(scales.to(device)[:, None]))

    def _row_scales(self, tensor: Tensor, scale: Tensor | None) -> Tensor:
        """[n] float32, from one scale a row or one for the whole tensor."""
        if scale is None:
            raise UnsupportedModelError(f"{self.path}: tensor {self.name} is FP8, and {self.name}_scale is missing.")
        num_rows, cut = self.part.full_shape[0], self.part.cut
        if scale.numel() == 1:
            return scale.to(torch.float32).flatten().expand(tensor.shape[0])
        if scale.shape in ((num_rows,), (num_rows, 1)):
            scales = scale.to(torch.float32).flatten()
            if cut is not None and cut.dimension == 0:
                return scales[cut.span.start :][: cut.span.length]
            return scales  # columns alone are split: the scales belong to whole rows
        raise UnsupportedModelError(
            f"{self.path}: tensor {self.name}_scale has shape {list(scale.shape)}; supported are one scale for the "
            f"tensor and one for each of its {num_rows} rows."
        )


@torch.no_grad()
def fill_dummy(parts: Mapping[str, Part], seed: int, rank: int = 0) -> None:
    """Random weights (std 0.02, norms 1, biases 0). A seed gives the same ones on every machine's CPU; a GPU makes
    them itself, 70 GB in seconds, and gives others. Ranks differ in what they share between them, and in that alone."""
    for index, name in enumerate(sorted(parts)):
        part = parts[name]
        if part.optional:
            continue
        if name.endswith("bias"):
            part.data.zero_()
        elif "norm" in name:
            part.data.fill_(1.0)
        else:
            own = rank if part.cut is not None else 0
            _fill_random(part, (seed * 1_009 + own) * 1_000_003 + index)


def _fill_random(part: Part, seed: int) -> None:
    """An FP8 weight is drawn with a std of 1, where E4M3 has its precision, and scaled down by its scales."""
    data = part.data
    generator = torch.Generator(data.device).manual_seed(seed)
    std = _DUMMY_STD if part.scale is None else 1.0
    for chunk in torch.split(data.view(-1), _DUMMY_CHUNK):
        chunk.copy_(torch.randn(chunk.shape, generator=generator, device=data.device).mul_(std))
    if part.scale is not None:
        part.scale.fill_(_DUMMY_STD)
