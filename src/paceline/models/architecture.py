"""What a checkpoint is: the facts of its config.json that the decoder needs, or a refusal that says why.

Contract
- `read_architecture(path)` reads config.json (and generation_config.json for the end-of-sequence ids) of a
  Hugging Face directory. It imports no torch and opens no weights, so configuration can ask early.
- One decoder serves every supported family; what differs between them is a field here, never a class.
- A field that would change the arithmetic and is not understood is an UnsupportedModelError: a model
  that is almost right would pass every test but the one on quality.
- Both spellings of the rotary settings are read: `rope_parameters` (transformers 5) and
  `rope_theta` + `rope_scaling` (before).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import UnsupportedModelError
from paceline.layers.rope import Rope
from paceline.models.quantization import CheckpointQuantization, read_quantization
from paceline.models.support import REDUCED_HEAD, refuse_unsupported

Config = dict[str, Any]
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A decoder of the Llama family. Sizes are counts of numbers, not bytes."""

    family: str  # the name in config.json's `architectures`
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rope: Rope
    rms_norm_eps: float
    tied_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool  # RMS norm over each head of q and k, before the rotation (Qwen3)
    sliding_windows: tuple[int | None, ...]  # [num_layers]: a token sees that many positions, itself included
    dtype: str | None  # of the checkpoint, if it says
    eos_token_ids: tuple[int, ...]
    quantization: CheckpointQuantization | None = None  # how the checkpoint's linears are stored
    draft_vocab_size: int | None = None  # rows of a draft's reduced head (draft_head.py); None: all of vocab_size

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim


def read_architecture(path: Path) -> Architecture:
    """Read and check `path`/config.json. Raises UnsupportedModelError with what was found and what is expected."""
    config = _read_json(path / "config.json", required=True)
    family = refuse_unsupported(config, path)
    try:
        return _parse(config, family, path)
    except KeyError as missing:
        raise UnsupportedModelError(f"{path / 'config.json'} has no {missing}, which a {family} needs.") from None


def _parse(config: Config, family: str, path: Path) -> Architecture:
    num_layers, num_heads = int(config["num_hidden_layers"]), int(config["num_attention_heads"])
    num_kv_heads = int(config.get("num_key_value_heads") or num_heads)
    if num_heads % num_kv_heads:
        raise UnsupportedModelError(
            f"{path}: {num_heads} attention heads cannot be shared among {num_kv_heads} key-value heads."
        )
    llama_bias = family == "LlamaForCausalLM" and bool(config.get("attention_bias"))
    qwen3_bias = family == "Qwen3ForCausalLM" and bool(config.get("attention_bias"))
    return Architecture(
        family=family,
        vocab_size=int(config["vocab_size"]),
        hidden_size=int(config["hidden_size"]),
        intermediate_size=int(config["intermediate_size"]),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=_head_dim(config, family),
        max_position_embeddings=int(config["max_position_embeddings"]),
        rope=_rope(config, path),
        rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=family == "Qwen2ForCausalLM" or llama_bias or qwen3_bias,
        o_bias=llama_bias or qwen3_bias,
        mlp_bias=family == "LlamaForCausalLM" and bool(config.get("mlp_bias")),
        qk_norm=family == "Qwen3ForCausalLM",
        sliding_windows=_sliding_windows(config, family, num_layers, path),
        dtype=_dtype(config),
        eos_token_ids=_eos_token_ids(config, path),
        quantization=read_quantization(config, path),
        draft_vocab_size=_draft_vocab_size(config, path),
    )


def _draft_vocab_size(config: Config, path: Path) -> int | None:
    if REDUCED_HEAD not in (config.get("architectures") or []):
        return None
    size, vocab_size = config.get("draft_vocab_size"), int(config["vocab_size"])
    if not isinstance(size, int) or not 0 < size <= vocab_size or config.get("tie_word_embeddings"):
        raise UnsupportedModelError(
            f"{path}: a {REDUCED_HEAD} needs draft_vocab_size between 1 and {vocab_size}, not {size!r}, and a head of "
            "its own (tie_word_embeddings false)."
        )
    return size


def _head_dim(config: Config, family: str) -> int:
    default = 128 if family == "Qwen3ForCausalLM" else int(config["hidden_size"]) // int(config["num_attention_heads"])
    return int(config.get("head_dim") or default)


def _rope(config: Config, path: Path) -> Rope:
    found: Config = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = found.get("rope_type") or found.get("type") or "default"
    if kind not in ("default", "linear", "llama3"):
        raise UnsupportedModelError(
            f"{path}: rotary scaling '{kind}' is not supported; supported are: default, linear, llama3."
        )
    if found.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)) != 1.0:
        raise UnsupportedModelError(f"{path}: rotary embedding of a part of each head is not supported.")
    theta = float(found.get("rope_theta") or config.get("rope_theta") or 10000.0)
    if kind == "default":
        return Rope(theta=theta)
    if kind == "linear":
        return Rope(theta=theta, kind="linear", factor=float(found["factor"]))
    return Rope(
        theta=theta,
        kind="llama3",
        factor=float(found["factor"]),
        low_freq_factor=float(found["low_freq_factor"]),
        high_freq_factor=float(found["high_freq_factor"]),
        original_max_position_embeddings=int(
            found.get("original_max_position_embeddings") or config["max_position_embeddings"]
        ),
    )


def _sliding_windows(config: Config, family: str, num_layers: int, path: Path) -> tuple[int | None, ...]:
    """A Mistral slides in every layer; a Qwen only where told, and only from `max_window_layers` on."""
    window: int | None = None
    if family == "MistralForCausalLM" or (family.startswith("Qwen") and config.get("use_sliding_window")):
        window = config.get("sliding_window", 4096)
    kinds = config.get("layer_types") if family.startswith("Qwen") else None
    if kinds is None:
        first = int(config.get("max_window_layers", 28)) if family.startswith("Qwen") else 0
        kinds = ["sliding_attention" if layer >= first else "full_attention" for layer in range(num_layers)]
    if len(kinds) != num_layers or not set(kinds) <= {"sliding_attention", "full_attention"}:
        raise UnsupportedModelError(
            f"{path}: `layer_types` must name {num_layers} layers of full_attention or sliding_attention, not {kinds}."
        )
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _dtype(config: Config) -> str | None:
    name = str(config.get("dtype") or config.get("torch_dtype") or "").removeprefix("torch.")
    return name if name in DTYPES else None


def _eos_token_ids(config: Config, path: Path) -> tuple[int, ...]:
    """generation_config.json wins: Llama 3 lists there the ids that end a turn, config.json only one."""
    generation = _read_json(path / "generation_config.json", required=False)
    found = generation.get("eos_token_id")
    if found is None:
        found = config.get("eos_token_id")
    if found is None:
        return ()
    return tuple(int(token) for token in (found if isinstance(found, list) else [found]))


def _read_json(path: Path, *, required: bool) -> Config:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if not required:
            return {}
        raise UnsupportedModelError(
            f"{path} does not exist: a model is a Hugging Face directory with config.json and *.safetensors."
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UnsupportedModelError(f"{path} is not valid JSON: {error}.") from None
    if not isinstance(content, dict):
        raise UnsupportedModelError(f"{path} must hold a JSON object.")
    return content
