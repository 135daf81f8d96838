"""The settings of a rotary embedding, as a value. Imports no torch, so that configuration can read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotary embedding. `kind` llama3 is Llama 3.1's scaling by wavelength; linear divides every frequency."""

    theta: float = 10000.0
    kind: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192
