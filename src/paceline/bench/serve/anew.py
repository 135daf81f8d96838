"""Figures of a bench.json, derived anew from the requests.jsonl beside it: raw times are what was measured, and all
else follows from them."""

from __future__ import annotations

from collections.abc import Iterator
from math import isclose
from pathlib import Path
from typing import Any

import msgspec

from paceline.bench.serve.records import read_raw
from paceline.bench.serve.results import CUT_SHORT, Results
from paceline.bench.serve.summary import summarize

RAW_NAME = "requests.jsonl"
_ROUNDING = 1e-6
_EDGES = ("low", "high")  # of intervals, which another version may draw in another way


def derived_anew(path: Path, stored: Results) -> Results | None:
    """`stored`: what `path`, a bench.json, holds. None where there are no requests of that run beside it; a note where
    they say otherwise. Raises ConfigurationError where they are no whole run."""
    raw_path = path.with_name(RAW_NAME)
    if not raw_path.is_file():
        return None
    raw = read_raw(raw_path)
    if raw.header.environment != stored.environment:
        stored.notes.append(f"{raw_path} is of another run than {path.name}, whose figures are taken as they stand.")
        return None
    found = summarize(raw)
    if raw.header.digest is None:
        without_digest(found, raw_path)
    found.notes += [note for note in stored.notes if note.startswith(CUT_SHORT)]  # requests do not say why
    if others := next(_others(msgspec.to_builtins(stored.cases), msgspec.to_builtins(found.cases), ""), ""):
        found.notes.append(
            f"{path} has other figures than its {RAW_NAME} gives ({others}): it was edited, or written by another "
            f"version. Those of {RAW_NAME} are shown."
        )
    return found


def without_digest(results: Results, path: Path) -> Results:
    """With a note that says so."""
    results.notes.append(
        f"{path} carries no digest: an earlier version wrote it, or it was taken out. Whether figures were changed by "
        "hand, that fit each other all the same, cannot be told."
    )
    return results


def _others(stored: Any, found: Any, name: str) -> Iterator[str]:
    """Numbers that differ, by their names; what an earlier version did not have is no difference."""
    if isinstance(found, dict) and isinstance(stored, dict):
        where = f"{found['arm']}, {found['load']['value']:g}:" if "arm" in found else name
        for key in (key for key in found if key in stored and key not in _EDGES):
            yield from _others(stored[key], found[key], f"{where} {key}".strip())
    elif isinstance(found, list) and isinstance(stored, list):
        if len(found) != len(stored) and stored:
            yield f"{name or 'cases'}: {len(stored)} and {len(found)}"
        for one, two in zip(stored, found, strict=False):
            yield from _others(one, two, name)
    elif isinstance(found, int | float) and isinstance(stored, int | float):
        is_same = isclose(found, stored, rel_tol=_ROUNDING, abs_tol=1e-9)
        if not is_same:
            yield f"{name} {stored:g} and {found:g}"
