"""Is one file of a model directory what its name says? Only headers and small files are read, never a weight."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

_LFS = b"version https://git-lfs"
_LONGEST_HEADER = 100_000_000  # bytes; the format's own limit


def safetensors_problem(file: Path) -> str | None:
    """None, or what is wrong with a safetensors file: its header says how long the file must be.

    Format: https://github.com/huggingface/safetensors#format
    """
    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(len(_LFS))
        if not start:
            return "is empty"
        if start == _LFS:
            return "is a pointer of Git LFS, not the file itself"
        length = struct.unpack("<Q", start[:8])[0] if len(start) >= 8 else 0
        if length > _LONGEST_HEADER or len(start) < 8:
            return "is no safetensors file"
        if 8 + length > size:
            return f"is cut off: {size} bytes, and its header alone has {8 + length}"
        stream.seek(8)
        header = _object(stream.read(length))
    if header is None:
        return "is no safetensors file: its header is not readable"
    try:
        ends = [int(tensor["data_offsets"][1]) for name, tensor in header.items() if name != "__metadata__"]
    except (KeyError, TypeError, IndexError, ValueError):
        return "is no safetensors file: its header does not say where its tensors are"
    whole = 8 + length + max(ends, default=0)
    if size < whole:
        return f"is cut off: {size} of {whole} bytes are there"
    if size > whole:
        return f"is damaged: {size} bytes, and its header describes {whole}"
    return None


def json_problem(file: Path) -> str | None:
    """None, or what is wrong with config.json or tokenizer.json."""
    content = file.read_bytes()
    if not content:
        return "is empty"
    if content.startswith(_LFS):
        return "is a pointer of Git LFS, not the file itself"
    found = _object(content)
    if found is None:
        return "is not a JSON object"
    if file.name == "tokenizer.json":
        model = found.get("model")
        if not isinstance(model, dict) or not model.get("vocab"):
            return "holds no vocabulary"
    return None


def _object(content: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
