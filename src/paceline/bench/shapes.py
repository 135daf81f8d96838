"""Shapes of public models by name, so that a benchmark needs no download: the figures of their config.json.

`locate_model` turns what a user wrote (a shape, a config.json, a directory, a known name or a repo id) into something
that the engine can open, and says whether there are weights.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import ConfigurationError, did_you_mean
from paceline.hub import known_models

_LLAMA3_EOS = [128001, 128008, 128009]


def _llama3(hidden: int, intermediate: int, layers: int, heads: int, *, factor: float, **more: Any) -> dict[str, Any]:
    """Llama 3.1, 3.2 and 3.3: one vocabulary, 8 key-value heads, one rotary scaling with its own factor."""
    rope = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    return {
        **_config("LlamaForCausalLM", hidden, intermediate, layers, heads, 8, 128256, **more),
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "rope_scaling": rope,
        "eos_token_id": _LLAMA3_EOS,
    }


def _config(
    family: str, hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int, vocab: int, **more: Any
) -> dict[str, Any]:
    return {
        "architectures": [family],
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "rms_norm_eps": 1e-5,
        "torch_dtype": "bfloat16",
        **more,
    }


def _smollm2(hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int, theta: float) -> dict[str, Any]:
    return _config(
        "LlamaForCausalLM", hidden, intermediate, layers, heads, kv_heads, 49152,
        max_position_embeddings=8192, rope_theta=theta, tie_word_embeddings=True, eos_token_id=2,
    )  # fmt: skip


def _qwen(
    family: str, hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int, vocab: int, **more: Any
) -> dict[str, Any]:
    return _config(
        f"{family}ForCausalLM", hidden, intermediate, layers, heads, kv_heads, vocab,
        **{"rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_position_embeddings": 32768, "eos_token_id": 151645, **more},
    )  # fmt: skip


SHAPES: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": _llama3(4096, 14336, 32, 32, factor=8.0),
    "llama-3.1-70b": _llama3(8192, 28672, 80, 64, factor=8.0),
    "llama-3.1-405b": _llama3(16384, 53248, 126, 128, factor=8.0),
    "llama-3.2-1b": _llama3(2048, 8192, 16, 32, factor=32.0, head_dim=64, tie_word_embeddings=True),
    "llama-3.2-3b": _llama3(3072, 8192, 28, 24, factor=32.0, head_dim=128, tie_word_embeddings=True),
    "llama-3.3-70b": _llama3(8192, 28672, 80, 64, factor=8.0),
    "smollm2-135m": _smollm2(576, 1536, 30, 9, 3, 100000.0),
    "smollm2-360m": _smollm2(960, 2560, 32, 15, 5, 100000.0),
    "smollm2-1.7b": _smollm2(2048, 8192, 24, 32, 32, 130000.0),
    "qwen2.5-0.5b": _qwen("Qwen2", 896, 4864, 24, 14, 2, 151936, tie_word_embeddings=True),
    "qwen2.5-7b": _qwen("Qwen2", 3584, 18944, 28, 28, 4, 152064),
    "qwen2.5-72b": _qwen("Qwen2", 8192, 29568, 80, 64, 8, 152064),
    "qwen3-0.6b": _qwen("Qwen3", 1024, 3072, 28, 16, 8, 151936, head_dim=128, tie_word_embeddings=True),
    "qwen3-8b": _qwen("Qwen3", 4096, 12288, 36, 32, 8, 151936, head_dim=128, max_position_embeddings=40960),
    "qwen3-32b": _qwen("Qwen3", 5120, 25600, 64, 64, 8, 151936, head_dim=128, max_position_embeddings=40960),
    "mistral-7b-v0.3": _config(
        "MistralForCausalLM", 4096, 14336, 32, 32, 8, 32768,
        max_position_embeddings=32768, rope_theta=1e6, sliding_window=None, eos_token_id=2,
    ),
}  # fmt: skip


def shape_in(name: str) -> str | None:
    """The public shape that a model's name holds: RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8 is a llama-3.1-70b."""
    text = name.rstrip("/").rpartition("/")[2].lower()
    return next((shape for shape in SHAPES if re.search(rf"(?<![a-z0-9]){re.escape(shape)}(?![a-z0-9.])", text)), None)


@dataclass(frozen=True, slots=True)
class Located:
    """`model` is what `resolve_arguments` takes."""

    name: str
    model: str
    has_weights: bool


def locate_model(name: str, folder: Path) -> Located:
    """`folder`: where the config.json of a shape may be written. Raises ConfigurationError for an unknown name."""
    path = Path(name).expanduser()
    if name in SHAPES:
        return Located(name, str(_write(SHAPES[name], folder / name)), has_weights=False)
    if path.suffix == ".json" and path.is_file():
        return Located(name, str(_write(_read(path), folder / path.parent.name)), has_weights=False)
    if path.is_dir():
        return Located(name, name, has_weights=any(path.glob("*.safetensors")))
    if path.exists() or name in known_models() or "/" in name:
        return Located(name, name, has_weights=True)
    raise ConfigurationError(
        f"Unknown model or shape '{name}'.{did_you_mean(name.lower(), [*SHAPES, *known_models()])} "
        f"Shapes are: {', '.join(SHAPES)}. A config.json, a model directory or a known model will do as well."
    )


def said_of(error: ConfigurationError, located: str, given: str) -> ConfigurationError:
    """What is wrong is said of what the user gave, where `located` is a copy of it."""
    if located == given or not Path(given).is_file():
        return error
    return ConfigurationError(str(error).replace(str(Path(located) / "config.json"), given).replace(located, given))


def named_as_given(table: Mapping[str, str], folder: Path) -> dict[str, str]:
    """A resolved configuration without the places of copies in `folder`: what the user gave stands beside them."""
    copy = re.compile(rf"\s*\({re.escape(str(folder))}/[^)]*\)")
    return {name: copy.sub("", value) for name, value in table.items()}


def _write(config: dict[str, Any], folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _read(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ConfigurationError(f"'{path}' cannot be read as a config.json: {error}.") from None
    if not isinstance(config, dict):
        raise ConfigurationError(f"'{path}' must hold a JSON object: the config.json of a model.")
    return config
