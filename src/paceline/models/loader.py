"""Fills a model's parameters, from *.safetensors or with seeded random numbers.

One tensor of the checkpoint is in memory at a time beside the model. Names are checked in both directions before
anything is copied: a missing tensor would leave garbage, an unexpected one means that the decoder does not compute
what the checkpoint was trained for.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from paceline.errors import UnsupportedModelError
from paceline.models.support import weight_files

_IGNORED_SUFFIXES = ("rotary_emb.inv_freq",)
_SHOWN = 5
_DUMMY_STD = 0.02


def load_weights(views: dict[str, Tensor], path: Path, *, tied_embeddings: bool) -> None:
    """Copy every tensor of the checkpoint at `path` into the view of its name."""
    where = _locate(path, tied_embeddings)
    _check_names(set(views), set(where), path)
    for file in sorted(set(where.values())):
        with safe_open(file, framework="pt") as opened:
            for name in (name for name, holder in where.items() if holder == file):
                _copy(name, opened.get_tensor(name), views[name], path)


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
        where.pop("lm_head.weight", None)
    return {name: file for name, file in where.items() if not name.endswith(_IGNORED_SUFFIXES)}


def _check_names(wanted: set[str], found: set[str], path: Path) -> None:
    problems = [
        f"{len(names)} {kind} ({_some(names)})"
        for kind, names in (("missing", wanted - found), ("unexpected", found - wanted))
        if names
    ]
    if problems:
        raise UnsupportedModelError(f"{path}: the weights do not fit config.json: tensors {' and '.join(problems)}.")


def _some(names: set[str]) -> str:
    shown = sorted(names)[:_SHOWN]
    return ", ".join(shown) + (", …" if len(names) > _SHOWN else "")


def _copy(name: str, tensor: Tensor, view: Tensor, path: Path) -> None:
    if tensor.shape != view.shape:
        raise UnsupportedModelError(
            f"{path}: tensor {name} has shape {list(tensor.shape)}; config.json asks for {list(view.shape)}."
        )
    if not tensor.is_floating_point() or tensor.element_size() < 2:
        raise UnsupportedModelError(f"{path}: tensor {name} is {tensor.dtype}; quantised weights cannot be loaded yet.")
    view.copy_(tensor)


def fill_dummy(views: dict[str, Tensor], seed: int) -> None:
    """Random weights (std 0.02, norms 1, biases 0), the same on every device for a seed."""
    generator = torch.Generator().manual_seed(seed)
    for name in sorted(views):
        view = views[name]
        if name.endswith("bias"):
            view.zero_()
        elif "norm" in name:
            view.fill_(1.0)
        else:
            view.copy_(torch.randn(view.shape, generator=generator) * _DUMMY_STD)
