"""Kinds: what may follow each option of `vllm serve`, and stand for each key of its JSON objects.

An installed vLLM tells its own (probe_script.py, which says what a kind holds). For the others there is options.json:
read from the parser of 0.32 by benchmarks/vllm_option_table.py, and for another version made so wide that nothing is
refused there which any of the versions takes. An option that 0.32 does not have is not judged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

Kind = Mapping[str, Any]
Kinds = Mapping[str, Kind]

READ_FROM = 32
_BOUNDS = ("ge", "gt", "le", "lt")


@cache
def option_kinds(minor: int) -> Kinds:
    """By the names of options, without their dashes."""
    return _kinds("kinds", minor)


@cache
def speculative_kinds(minor: int) -> Kinds:
    """By the keys of --speculative-config."""
    return _kinds("speculative_kinds", minor)


def takes_no_value(kind: Kind) -> bool:
    return kind.get("takes") in ("none", "on")


def _kinds(part: str, minor: int) -> Kinds:
    table = _table()
    own: Kinds = table[part]
    if minor == READ_FROM:
        return own
    return {name: _widened(kind, table["elsewhere"][part].get(name, {})) for name, kind in own.items()}


def _widened(kind: Kind, more: Kind) -> Kind:
    wide = {name: value for name, value in kind.items() if name != "names"}
    if more.get("bounds") is False:
        wide = {name: value for name, value in wide.items() if name not in _BOUNDS}
    if "choices" in kind:
        wide["choices"] = [*kind["choices"], *more.get("choices", ())]
    if "keys" in kind:
        # What a key takes is known of 0.32 alone.
        wide["keys"] = {key: {"value": "any"} for key in (*kind["keys"], *more.get("keys", ()))}
    return wide


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads((files("paceline.runtimes.vllm") / "options.json").read_text())
    return table
