"""Which linears of a model are kept in FP8, and what a checkpoint says about its own. Imports no torch.

Contract
- `read_quantization` turns config.json's `quantization_config` into a CheckpointQuantization, or refuses with what was
  found and what is supported: FP8 (E4M3) weights with one scale a tensor or one a row, as compressed-tensors
  ("FP8-dynamic" and static), `quant_method: fp8` and NVIDIA's Model Optimizer store them. The last may say so in a
  file of its own, hf_quant_config.json.
- Whatever the checkpoint says of activations, a step quantises them with one scale a token, taken from the token
  itself; static `input_scale`s are not used. A scale of its own is never worse than one fixed for all tokens.
- `choose_formats` decides, before any weight is read, which linears of the running model are FP8. A device without FP8
  products gets none: the loader then dequantises.
- A fused linear (q, k, v; gate, up) is FP8 only if all of its parts are. Each part keeps its own scales: they belong to
  rows, so fusing changes nothing.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from paceline.errors import ConfigurationError, UnsupportedModelError

HEAD = "lm_head"
_MODEL_OPTIMIZER = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN")
_SUPPORTED = (
    "Supported are FP8 (E4M3) weights with one scale a tensor or a row, as compressed-tensors (FP8-dynamic and "
    "static), quant_method 'fp8' and Model Optimizer store them; or use the checkpoint in bfloat16, with "
    "quantization='fp8' if you like."
)


@dataclass(frozen=True, slots=True)
class CheckpointQuantization:
    """A checkpoint whose linears are FP8. Names are modules' names, with * for anything, or patterns after 're:'."""

    method: str
    targets: tuple[str, ...] = ("Linear",)
    ignored: tuple[str, ...] = (HEAD,)

    def covers(self, module: str) -> bool:
        """Whether the weights of `module` ('model.layers.0.mlp.up_proj') are FP8."""
        return _any_matches(self.targets, module) and not _any_matches(self.ignored, module)


@dataclass(frozen=True, slots=True)
class LinearFormats:
    """Which linears are FP8 in memory. `words` says it in the table printed at start."""

    words: str = ""  # empty: nothing is quantised
    decoder: bool = False  # linears of the decoder layers, as far as the checkpoint's own configuration covers them
    head: bool = False
    checkpoint: CheckpointQuantization | None = None

    def is_fp8(self, *modules: str) -> bool:
        """Whether a linear fused of `modules` is FP8."""
        if modules == (HEAD,):
            return self.head
        return self.decoder and (self.checkpoint is None or all(map(self.checkpoint.covers, modules)))


def choose_formats(
    checkpoint: CheckpointQuantization | None,
    *,
    quantize: bool,
    quantize_lm_head: bool,
    tied_embeddings: bool,
    has_fp8_products: bool,
) -> LinearFormats:
    """`quantize`: FP8 was asked for, whatever the checkpoint holds."""
    if checkpoint is None and not quantize:
        if quantize_lm_head:
            raise ConfigurationError("quantize_lm_head needs an FP8 model: add quantization='fp8', or leave it out.")
        return LinearFormats()
    if not has_fp8_products:
        found = "the checkpoint's FP8 weights" if checkpoint else "weights"
        return LinearFormats(words=f"{found}, dequantised while loading: this device has no FP8 products")
    own_head = checkpoint is not None and not tied_embeddings and checkpoint.covers(HEAD)
    head = quantize_lm_head or own_head
    origin = f"of the checkpoint ({checkpoint.method})" if checkpoint else "quantised while loading"
    words = f"fp8 (E4M3), a scale a row, {origin}; activations a scale a token; head {'too' if head else 'not'}"
    return LinearFormats(words=words, decoder=True, head=head, checkpoint=checkpoint)


def read_quantization(config: dict[str, Any], path: Path) -> CheckpointQuantization | None:
    """`config` is config.json. Raises UnsupportedModelError for every kind of quantisation but FP8."""
    found = config.get("quantization_config") or config.get("compression_config") or _own_file(path)
    if not found:
        return None
    if not isinstance(found, dict):
        raise UnsupportedModelError(f"{path}: `quantization_config` must be a JSON object.")
    method = str(found.get("quant_method", "unknown"))
    if method == "compressed-tensors":
        return _compressed_tensors(found, path)
    if method == "fp8":
        return _fp8(found, path)
    if method == "modelopt":
        return _model_optimizer(found, path)
    raise _refusal(path, f"quant_method '{method}'")


def _compressed_tensors(found: dict[str, Any], path: Path) -> CheckpointQuantization:
    if (found.get("sparsity_config") or {}).get("format", "dense") != "dense":
        raise _refusal(path, "compressed-tensors with sparsity")
    groups = list((found.get("config_groups") or {}).values())
    if not groups:
        raise _refusal(path, "compressed-tensors without config_groups")
    for group in groups:
        _check_scheme(group.get("weights"), "weights", ("tensor", "channel"), path)
        _check_scheme(group.get("input_activations"), "input_activations", ("tensor", "token"), path)
    targets = tuple(target for group in groups for target in group.get("targets") or ("Linear",))
    return CheckpointQuantization("compressed-tensors", targets, tuple(found.get("ignore") or ()))


def _check_scheme(scheme: dict[str, Any] | None, what: str, strategies: tuple[str, ...], path: Path) -> None:
    if scheme is None:
        raise _refusal(path, f"compressed-tensors with unquantised {what}")
    bits, kind, strategy = scheme.get("num_bits"), scheme.get("type"), scheme.get("strategy")
    if (bits, kind) != (8, "float") or strategy not in strategies or not scheme.get("symmetric", True):
        raise _refusal(path, f"compressed-tensors with {what} of {bits}-bit {kind} by {strategy}")


def _fp8(found: dict[str, Any], path: Path) -> CheckpointQuantization:
    if found.get("weight_block_size"):
        raise _refusal(path, f"quant_method 'fp8' with a scale for every block of {found['weight_block_size']}")
    if str(found.get("fmt") or "e4m3").removeprefix("float8_").removesuffix("fn") != "e4m3":
        raise _refusal(path, f"quant_method 'fp8' in format {found['fmt']}")
    ignored = found.get("ignored_layers") or found.get("modules_to_not_convert") or (HEAD,)
    return CheckpointQuantization("fp8", ignored=tuple(ignored))


def _model_optimizer(found: dict[str, Any], path: Path) -> CheckpointQuantization:
    if found.get("quant_algo") not in _MODEL_OPTIMIZER:
        raise _refusal(path, f"Model Optimizer's {found.get('quant_algo')}")
    ignored = found.get("ignore") or found.get("exclude_modules") or (HEAD,)
    return CheckpointQuantization("modelopt", ignored=tuple(ignored))


def _own_file(path: Path) -> dict[str, Any] | None:
    """Model Optimizer's hf_quant_config.json, in the words of a `quantization_config`."""
    try:
        content = json.loads((path / "hf_quant_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    found = content.get("quantization") if isinstance(content, dict) else None
    return {**found, "quant_method": "modelopt"} if isinstance(found, dict) and found.get("quant_algo") else None


def _refusal(path: Path, what: str) -> UnsupportedModelError:
    return UnsupportedModelError(f"{path} is quantised: {what} is not supported. {_SUPPORTED}")


def _any_matches(names: tuple[str, ...], module: str) -> bool:
    return any(_matches(name, module) for name in names)


def _matches(name: str, module: str) -> bool:
    """A pattern, a module's whole name, a part of its path ('mlp.up_proj', 'model.layers.0'), or all linears."""
    if name.startswith("re:"):
        return re.match(name.removeprefix("re:"), module) is not None
    if "*" in name:
        return fnmatchcase(module, name)
    return name == "Linear" or f".{name}." in f".{module}."
