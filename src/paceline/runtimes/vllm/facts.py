"""VllmFacts: what one version of vLLM takes, from its own parser where it is installed, else from the tables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.errors import ConfigurationError
from paceline.runtimes.vllm import tables
from paceline.runtimes.vllm.kinds import Kinds, option_kinds, speculative_kinds
from paceline.runtimes.vllm.tables import FIRST, LAST, Ranges

DEFAULT_VERSION = f"0.{LAST}.0"
SUPPORTED = f"0.{FIRST} to 0.{LAST}"
_VERSION = re.compile(r"v?(\d+)\.(\d+)(?:[.+\-a-z].*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmFacts:
    """Option names without dashes; `device` is known of an installed vLLM only: 'cpu', 'cuda', ..."""

    version: str
    flags: frozenset[str]
    speculative_fields: frozenset[str]
    methods: frozenset[str]
    acceptance_methods: frozenset[str]
    kinds: Kinds = field(default_factory=dict)  # of the flags; one that is missing is not judged
    speculative_kinds: Kinds = field(default_factory=dict)
    device: str | None = None
    distribution: str = "vllm"  # the package that is installed

    @property
    def minor(self) -> int:
        return minor_version(self.version)

    def has_flag(self, name: str) -> bool:
        """Also the negative form of an option: parsers make it for those that are on or off."""
        return name in self.flags or (name.startswith("no-") and name[3:] in self.flags)


def minor_version(version: str) -> int:
    """The y of 0.y.z. Raises ConfigurationError where Paceline does not know the version's arguments."""
    found = _VERSION.fullmatch(version.strip())
    if found is None:
        raise ConfigurationError(f"'{version}' is not a version of vLLM; give it as 0.32 or 0.32.0.")
    major, minor = int(found[1]), int(found[2])
    if major != 0 or minor < FIRST:
        meant = f" Did you mean 0.{minor}0?" if major == 0 and FIRST <= 10 * minor <= LAST else ""
        raise ConfigurationError(
            f"vLLM {version} is not supported: runtime vllm knows {SUPPORTED}.{meant or ' Install one of these.'}"
        )
    return minor


def facts_of(version: str) -> VllmFacts:
    """From the tables, for a version that need not be installed."""
    minor = minor_version(version)
    if minor > LAST:
        raise ConfigurationError(
            f"vLLM {version} is newer than what Paceline has tables for ({SUPPORTED}). Install it and give its Python "
            "with --vllm-python: an installed vLLM is asked for its own arguments."
        )
    return VllmFacts(
        version=version.strip().removeprefix("v"),
        flags=_names(tables.FLAGS, minor),
        speculative_fields=_names(tables.SPECULATIVE_FIELDS, minor),
        methods=_names(tables.METHODS, minor),
        acceptance_methods=_names(tables.ACCEPTANCE_METHODS, minor),
        kinds=option_kinds(minor),
        speculative_kinds=speculative_kinds(minor),
    )


def facts_of_any() -> VllmFacts:
    """What any of the versions takes, where it is not known which one will run."""
    kinds, speculative = option_kinds(LAST), speculative_kinds(LAST)
    return VllmFacts(
        version=f"0.{LAST}",
        flags=_all_names(tables.FLAGS),
        speculative_fields=_all_names(tables.SPECULATIVE_FIELDS),
        methods=_all_names(tables.METHODS),
        acceptance_methods=_all_names(tables.ACCEPTANCE_METHODS),
        kinds=kinds,
        speculative_kinds=speculative,
    )


def facts_from_answer(answer: Mapping[str, Any]) -> VllmFacts:
    """From what probe_script.py printed."""
    minor_version(answer["version"])
    return VllmFacts(
        version=answer["version"],
        flags=frozenset(flag.removeprefix("--") for flag in answer["flags"]),
        speculative_fields=frozenset(answer["speculative_fields"]),
        methods=frozenset(answer["methods"]),
        acceptance_methods=frozenset(answer["acceptance_methods"]),
        kinds=answer["kinds"],
        speculative_kinds=answer["speculative_kinds"],
        device=answer["device"],
        distribution=answer["distribution"],
    )


def known_since(table: Ranges, name: str) -> str:
    """' (it came with 0.24)' or ' (it went with 0.24)', as far as the tables know; else an empty string."""
    for (first, last), names in table.items():
        if name in names.split():
            return f" (it came with 0.{first})" if last == LAST else f" (0.{last} was the last with it)"
    return ""


def _all_names(table: Ranges) -> frozenset[str]:
    return frozenset(name for names in table.values() for name in names.split())


def _names(table: Ranges, minor: int) -> frozenset[str]:
    return frozenset(name for (first, last), names in table.items() if first <= minor <= last for name in names.split())
