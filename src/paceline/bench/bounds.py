"""What a number may be: wide enough for every load and card that there is, so narrow that no formula overflows."""

from __future__ import annotations

from dataclasses import dataclass
from math import log10


@dataclass(frozen=True, slots=True)
class Bounds:
    """Both ends included. `or_zero`: 0 is allowed as well."""

    low: float
    high: float
    unit: str = ""
    or_zero: bool = False

    def problem(self, name: str, value: float) -> str | None:
        """One sentence that names what is wrong, or None. nan is in no bounds."""
        if self.low <= value <= self.high or (self.or_zero and value == 0):
            return None
        zero = "0 or " if self.or_zero else ""
        unit = f" {self.unit}" if self.unit else ""
        return f"{name} must be {zero}from {_words(self.low)} to {_words(self.high)}{unit}, not {_short(value)}."


def _words(bound: float) -> str:
    if bound == int(bound):
        return f"{int(bound):,}" if abs(bound) < 1e15 else f"{bound:.3g}"
    return f"{bound:.9f}".rstrip("0")


def _short(value: float) -> str:
    """An integer of hundreds of digits is not repeated."""
    if isinstance(value, int) and abs(value) >= 10**15:
        return f"{'-' if value < 0 else ''}1e{int(log10(abs(value)))}"
    return str(value)
