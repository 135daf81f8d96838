"""Which checkpoints can be served, and the reason each other kind is refused. Imports no torch.

The reasons are kept apart because a user does different things about them: a recurrent model can never
be a target of speculation, a pickled one only needs another file. Quantised ones: see quantization.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.errors import UnsupportedModelError

SUPPORTED = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
REDUCED_HEAD = "LlamaReducedHeadForCausalLM"  # a draft that proposes only some tokens: see draft_head.py
_SUPPORTED_TEXT = "Llama 2/3.x and SmolLM2 (LlamaForCausalLM), Mistral (MistralForCausalLM), Qwen2/2.5 and Qwen3"
_RECURRENT = (
    "mamba",
    "rwkv",
    "jamba",
    "recurrentgemma",
    "zamba",
    "bamba",
    "griffin",
    "xlstm",
    "retnet",
    "nemotronh",
    "granitemoehybrid",
    "qwen3next",
    "lfm2",
    "falconh1",
    "minimax",
    "plamo2",
)
_STATEFUL_LAYERS = ("mamba", "linear_attention", "recurrent", "conv", "ssm")
_EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")


def refuse_unsupported(config: dict[str, Any], path: Path) -> str:
    """Return the family's name as in SUPPORTED, or raise UnsupportedModelError with the reason."""
    name = _name(config)
    where = f"{path}: {name or 'a model without `architectures`'}"
    if _is_recurrent(config, name):
        raise UnsupportedModelError(
            f"{where} keeps a recurrent state. Speculation needs a state that can be rolled back when drafts are "
            "rejected, and only a key-value cache can; use a model with attention in every layer."
        )
    if "moe" in name.lower() or "mixtral" in name.lower() or any((config.get(key) or 0) > 1 for key in _EXPERT_COUNTS):
        raise UnsupportedModelError(f"{where} is a mixture of experts, which is not supported yet.")
    if name == REDUCED_HEAD:
        return "LlamaForCausalLM"
    if name not in SUPPORTED:
        raise UnsupportedModelError(f"{where} is not supported; supported are: {_SUPPORTED_TEXT}.")
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise UnsupportedModelError(f"{where} uses the activation '{activation}'; only 'silu' is supported.")
    return name


def weight_files(path: Path) -> list[Path]:
    """The *.safetensors of a directory. Pickles are refused: unpickling runs whatever code is in the file."""
    files = sorted(path.glob("*.safetensors"))
    if files:
        return files
    if any(path.glob("*.bin")) or any(path.glob("*.pt")) or any(path.glob("*.pth")):
        raise UnsupportedModelError(
            f"{path} holds its weights only as pickles (*.bin, *.pt), which can run code when they are opened; "
            "convert them with transformers' save_pretrained to *.safetensors."
        )
    raise UnsupportedModelError(f"{path} holds no *.safetensors; download the weights or use load_format='dummy'.")


def _name(config: dict[str, Any]) -> str:
    names = config.get("architectures") or []
    if names:
        return str(names[0])
    by_type = {model_type: name for name, model_type in SUPPORTED.items()}
    model_type = str(config.get("model_type") or "")
    return by_type.get(model_type, model_type)


def _is_recurrent(config: dict[str, Any], name: str) -> bool:
    names = f"{name} {config.get('model_type', '')}".lower().replace("_", "").replace("-", "")
    layers = " ".join(str(kind) for kind in config.get("layer_types") or config.get("layers_block_type") or [])
    return any(word in names for word in _RECURRENT) or any(word in layers for word in _STATEFUL_LAYERS)
