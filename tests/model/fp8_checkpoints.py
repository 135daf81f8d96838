"""Tiny FP8 checkpoints in every supported form, and the same model dequantised to float32."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from model.tiny import make_tiny
from safetensors.torch import load_file, save_file
from torch import Tensor

FP8 = torch.float8_e4m3fn
FORMS = ("compressed-dynamic", "compressed-static", "fp8-static", "fp8-dynamic", "modelopt-static")


def _scheme(strategy: str, *, dynamic: bool) -> dict[str, Any]:
    return {"num_bits": 8, "type": "float", "strategy": strategy, "dynamic": dynamic, "symmetric": True}


def quantization_config(form: str) -> dict[str, Any]:
    if form.startswith("fp8"):
        return {"quant_method": "fp8", "activation_scheme": form.removeprefix("fp8-"), "ignored_layers": ["lm_head"]}
    if form == "modelopt-static":
        return {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head*"]}
    static = form == "compressed-static"
    group = {
        "targets": ["Linear"],
        "weights": _scheme("tensor" if static else "channel", dynamic=False),
        "input_activations": _scheme("tensor" if static else "token", dynamic=not static),
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "quantization_status": "compressed",
    }


def make_fp8(form: str, folder: Path, kind: str = "llama3", ignored: tuple[str, ...] = ()) -> tuple[Path, Path]:
    """(FP8 checkpoint of `form`, the same numbers in float32). Linears whose names hold one of `ignored` stay float."""
    plain = make_tiny(kind, folder / "plain")
    quantized = folder / "fp8"
    shutil.copytree(plain, quantized)
    tensors, stored, dequantized = load_file(plain / "model.safetensors"), {}, {}
    for name, tensor in tensors.items():
        if name.endswith("_proj.weight") and not any(word in name for word in ignored):
            data, scale = _quantize(tensor, per_row=form == "compressed-dynamic")
            dequantized[name] = data.to(torch.float32) * scale
            stored[name], stored[f"{name}_scale"] = data, _as_saved(scale, form)
            if form.endswith("static"):
                stored[name.replace("weight", "input_scale")] = _as_saved(torch.tensor([[0.01]]), form)
        else:
            stored[name] = dequantized[name] = tensor
    save_file(dequantized, plain / "model.safetensors", metadata={"format": "pt"})
    save_file(stored, quantized / "model.safetensors", metadata={"format": "pt"})
    config = quantization_config(form)
    config["ignored_layers" if form.startswith("fp8") else "ignore"] += ignored
    set_config(quantized, quantization_config=config)
    return quantized, plain


def _quantize(tensor: Tensor, *, per_row: bool) -> tuple[Tensor, Tensor]:
    """Data and scale [n, 1] or [1, 1]."""
    size = tensor.abs().amax(1, keepdim=True) if per_row else tensor.abs().amax().view(1, 1)
    scale = size / 448
    return (tensor / scale).to(FP8), scale


def _as_saved(scale: Tensor, form: str) -> Tensor:
    if form == "compressed-dynamic":
        return scale
    return scale.view(1) if form == "compressed-static" else scale.view(())


def set_config(path: Path, **fields: Any) -> None:
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | fields))


def edit_tensors(path: Path, **changes: Tensor | None) -> None:
    """Change or (None) drop tensors; '__' in a keyword stands for a dot."""
    tensors = load_file(path / "model.safetensors")
    for keyword, value in changes.items():
        name = keyword.replace("__", ".")
        if value is None:
            del tensors[name]
        else:
            tensors[name] = value
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
