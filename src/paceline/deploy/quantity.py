"""Kubernetes quantities of bytes, such as 16Gi."""

from __future__ import annotations

_UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def to_bytes(quantity: str | int) -> int:
    """Raises ValueError for what is not a whole number of bytes with one of the usual suffixes."""
    text = str(quantity)
    for suffix, factor in _UNITS.items():
        if text.endswith(suffix):
            return int(text.removesuffix(suffix)) * factor
    return int(text)
