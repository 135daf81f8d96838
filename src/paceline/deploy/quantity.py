"""Kubernetes quantities: 16Gi, 500m, 1.5Ti, 2e3."""

from __future__ import annotations

import re
from fractions import Fraction

_UNITS = {
    "": Fraction(1),
    **{letter: Fraction(1, 1000**power) for power, letter in enumerate("mun", 1)},
    **{letter: Fraction(1000**power) for power, letter in enumerate("kMGTPE", 1)},
    **{f"{letter}i": Fraction(1024**power) for power, letter in enumerate("KMGTPE", 1)},
}
_QUANTITY = re.compile(
    r"([+-]?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30}))(?:[eE]([+-]?\d{1,2})|(m|u|n|[kMGTPE]|[KMGTPE]i))?", re.ASCII
)
MOST = 2**63 - 1  # of bytes, and of everything else: an int64 of Kubernetes


def amount(quantity: str | int | float) -> Fraction:
    """Exact. Raises ValueError for what Kubernetes does not read as a quantity."""
    found = None if isinstance(quantity, bool) else _QUANTITY.fullmatch(str(quantity))
    if found is None:
        raise ValueError(f"{quantity!r} is no quantity")
    number, exponent, unit = found.groups()
    return Fraction(number) * Fraction(10) ** int(exponent or 0) * _UNITS[unit or ""]


def to_bytes(quantity: str | int) -> int:
    """Rounded up, as Kubernetes does. Raises ValueError for what is no quantity."""
    found = amount(quantity)
    return -(-found.numerator // found.denominator)
