"""GPUs by name: rates, memory and links, from data/hardware.toml and, if given, a user's file of the same form."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, timedelta
from importlib import resources
from pathlib import Path
from typing import Any

from paceline.bench.bounds import Bounds
from paceline.bench.files import read_text
from paceline.errors import ConfigurationError, did_you_mean

_PACKAGED = date(2026, 11, 30)  # of the packaged files: they are read where the clock is behind, too
_RATE = Bounds(1e-3, 1e6)  # of no card, on either side: formulas divide by these
_BOUNDS = {
    "memory_gib": _RATE,
    "bandwidth_tb_s": _RATE,
    "fp8_tflops": Bounds(1e-3, 1e6, or_zero=True),
    "bf16_tflops": _RATE,
    "multiprocessors": Bounds(1, 1e6),
    "interconnect_gb_s": _RATE,
    "gpus_per_node": Bounds(1, 1e6),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One card. Rates are peak, dense; the interconnect's is both directions of one card added up."""

    key: str
    name: str
    memory_gib: float
    bandwidth_tb_s: float
    fp8_tflops: float  # 0: no FP8 products
    bf16_tflops: float
    multiprocessors: int
    interconnect_gb_s: float
    gpus_per_node: int
    runs_paceline: bool  # its kernels were written for this kind of card
    source: str
    checked: str  # date

    def __post_init__(self) -> None:
        for field, bounds in _BOUNDS.items():
            value = getattr(self, field)
            if problem := bounds.problem(f"GPU '{self.key}': {field}", value):
                raise ConfigurationError(problem)

    @property
    def memory_bytes(self) -> int:
        return int(self.memory_gib * (1 << 30))

    @property
    def bandwidth(self) -> float:
        """Bytes a second."""
        return self.bandwidth_tb_s * 1e12

    @property
    def has_fp8(self) -> bool:
        return self.fp8_tflops > 0

    def flops(self, *, is_fp8: bool) -> float:
        """Operations a second, dense."""
        return (self.fp8_tflops if is_fp8 else self.bf16_tflops) * 1e12


def read_toml(path: Path, option: str) -> dict[str, Any]:
    """Raises ConfigurationError that names the option and the file."""
    text = read_text(path, option)
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ConfigurationError(f"{option} '{path}' is not valid TOML here: it is nested too deep.") from None
    except ValueError as error:  # TOMLDecodeError, and numbers too long for Python
        raise ConfigurationError(f"{option} '{path}' is not valid TOML: {error}.") from None


def packaged_toml(name: str) -> dict[str, Any]:
    return tomllib.loads(resources.files("paceline.capacity").joinpath("data", name).read_text(encoding="utf-8"))


def load_gpus(user_file: Path | None = None) -> dict[str, Gpu]:
    """By key, the user's over the packaged ones."""
    gpus = _parse(packaged_toml("hardware.toml"), "hardware.toml")
    if user_file is not None:
        gpus |= _parse(read_toml(user_file, "--hardware"), str(user_file))
    return gpus


def find_gpu(name: str, gpus: Mapping[str, Gpu], where: str = "--gpu") -> Gpu:
    """`where`: what said the name, for the message of a ConfigurationError."""
    key = name.strip().lower().replace("_", "-").replace(" ", "-")
    aliases = {"h100": "h100-sxm", "a100": "a100-80", "h200-sxm": "h200", "b200-sxm": "b200"}
    key = aliases.get(key, key) if key not in gpus else key
    if key in gpus:
        return gpus[key]
    raise ConfigurationError(
        f"{where} '{name}' is not known.{did_you_mean(key, gpus)} Known are: {', '.join(gpus)}. Add another one with "
        "--hardware FILE (the form is in docs/plan.md)."
    )


def _parse(content: Mapping[str, Any], where: str) -> dict[str, Gpu]:
    table = content.get("gpus")
    if not isinstance(table, dict) or not table:
        raise ConfigurationError(f"'{where}' has no [gpus.NAME] tables.")
    return {key: _gpu(key, entry, where) for key, entry in table.items()}


def _gpu(key: str, entry: Any, where: str) -> Gpu:
    kinds: dict[str, Any] = {field.name: str(field.type) for field in fields(Gpu) if field.name != "key"}
    if not isinstance(entry, dict):
        raise ConfigurationError(f"'{where}': gpus.{key} must be a table.")
    for name in entry:
        if name not in kinds:
            raise ConfigurationError(f"'{where}': gpus.{key} has an unknown field '{name}'.{did_you_mean(name, kinds)}")
    for name, kind in kinds.items():
        if name not in entry:
            raise ConfigurationError(f"'{where}': gpus.{key} lacks '{name}'.")
        if name == "checked":
            entry = {**entry, name: checked_date(entry[name], f"'{where}': gpus.{key}.{name}")}
        check_kind(entry[name], kind, f"'{where}': gpus.{key}.{name}")
    return Gpu(key=key, **entry)


def check_kind(value: Any, kind: str, where: str) -> None:
    """A TOML value against an annotation of a dataclass: float takes whole numbers, bool is no number. What a number
    may be is the dataclass's own check."""
    fits = {
        "str": isinstance(value, str),
        "bool": isinstance(value, bool),
        "int": isinstance(value, int) and not isinstance(value, bool),
        "float": isinstance(value, int | float) and not isinstance(value, bool),
    }
    if not fits[kind]:
        raise ConfigurationError(f"{where} must be of kind {kind}, not {value!r}.")


def checked_date(value: Any, where: str) -> str:
    """A day, as text such as 2026-11-30 or as TOML's own kind."""
    found = value if type(value) is date else None
    if isinstance(value, str) and len(value) == len("2026-11-30"):
        with suppress(ValueError):
            found = date.fromisoformat(value)
    if found is not None:
        if found > max(datetime.now(UTC).date(), _PACKAGED) + timedelta(days=1):  # somewhere it is tomorrow
            raise ConfigurationError(f"{where} is {found}, which is yet to come: give the day on which that was so.")
        return found.isoformat()
    raise ConfigurationError(f'{where} must be the date on which that was so, such as "2026-11-30", not {value!r}.')
