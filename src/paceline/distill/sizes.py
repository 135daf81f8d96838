"""Sizes of drafts by name, and how much text and memory a machine is given by default."""

from __future__ import annotations

from dataclasses import dataclass

import psutil
import torch

from paceline.distill.model import LlamaShape
from paceline.distill.recipe import DistillRecipe, TextRecipe
from paceline.distill.text import round_bytes
from paceline.errors import ConfigurationError, did_you_mean
from paceline.models.architecture import Architecture


@dataclass(frozen=True, slots=True)
class Size:
    hidden: int
    layers: int
    heads: int


# A layer costs little beside the table and the calls; `small` is the default pair's draft.
SIZES = {
    "tiny": Size(128, 2, 2),
    "small": Size(256, 3, 4),
    "base": Size(384, 4, 6),
    "large": Size(512, 6, 8),
}
_MLP_FACTOR = 2.5  # of the hidden size, rounded up to a multiple of 64
_MAX_ROWS = 4096


def draft_shape(
    size: str, hidden: int | None, layers: int | None, heads: int | None, target: Architecture
) -> LlamaShape:
    """`size` by name, with what is given in its place. Raises ConfigurationError."""
    if size not in SIZES:
        raise ConfigurationError(f"--size {size}: there are {', '.join(SIZES)}.{did_you_mean(size, SIZES)}")
    named = SIZES[size]
    for option, value in (("--hidden", hidden), ("--layers", layers), ("--heads", heads)):
        if value is not None and value < 1:
            raise ConfigurationError(f"{option} {value} must be at least 1.")
    width, depth = hidden or named.hidden, layers or named.layers
    count = heads or (named.heads if hidden is None else max(1, width // 64))
    if width % (2 * count):
        raise ConfigurationError(
            f"--hidden {width} and --heads {count} do not fit: a head is hidden / heads wide, and that must be even."
        )
    return LlamaShape(
        vocab_size=target.vocab_size,
        hidden_size=width,
        num_layers=depth,
        num_heads=count,
        num_kv_heads=count,
        head_dim=width // count,
        intermediate_size=-(-int(_MLP_FACTOR * width) // 64) * 64,
        max_positions=target.max_position_embeddings,
    )


def default_text(
    target: Architecture, device: torch.device, rows: int | None, length: int | None, data_mix: float
) -> TextRecipe:
    """Rows and buffers that fit this machine. Raises ConfigurationError for what the target cannot read."""
    on_gpu, positions = device.type == "cuda", target.max_position_embeddings
    length = min(512 if on_gpu else 256, positions // 2) if length is None else length
    if length < 16 or 2 * length > positions:
        raise ConfigurationError(
            f"--length {length} must be at least 16 and at most {positions // 2}, half of the target's positions: "
            "conversations about documents are twice as long."
        )
    memory = torch.cuda.get_device_properties(device).total_memory if on_gpu else psutil.virtual_memory().total
    if rows is None:
        rows = _gpu_rows(target, length, memory) if on_gpu else 64
    if rows < 4:
        raise ConfigurationError(f"--rows {rows} must be at least 4: some rows are held out, the others learnt from.")
    return TextRecipe(
        rows=rows, length=length, selected=max(1, length * 3 // 4), held_out=max(2, rows // 8), data_mix=data_mix,
        buffer_bytes=int(memory * (0.4 if on_gpu else 0.1)),
    )  # fmt: skip


def _gpu_rows(target: Architecture, length: int, memory: int) -> int:
    """As many rows as a third of the memory has BF16 keys, values and hidden states for, a multiple of 64."""
    row_bytes = 2 * (2 * target.num_layers * target.kv_size + target.hidden_size) * length
    return max(64, min(_MAX_ROWS, memory // 3 // row_bytes // 64 * 64))


def default_tokens(device: torch.device) -> int:
    """On a GPU enough for a draft worth having (the default pair's saw 708 M); on a CPU a small run's."""
    return 500_000_000 if device.type == "cuda" else 2_000_000


def default_batch(device: torch.device) -> int:
    return 128 if device.type == "cuda" else 16


def disk_bytes(recipe: DistillRecipe, shape: LlamaShape, steps: int) -> int:
    """Text, two checkpoints (weights and at most two moments in fp32, for each branch) and two BF16 exports."""
    text = recipe.text
    written = recipe.rounds_for(steps) * round_bytes(text.rows, text.length)
    branches = max(1, len(recipe.final_losses))
    return written + shape.num_parameters * (2 * branches * 12 + 4)
