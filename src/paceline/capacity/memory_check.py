"""The memory plan that an engine printed at start, against the one that is made here without a card."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from paceline.capacity.measurement import Measurement
from paceline.capacity.memory import Limits, plan_pair

_MIB = 1 << 20
_PREFIX = "memory: "


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine of a benchmark; MiB by the names of the table that is printed at start."""

    k: int
    recorded: dict[str, float]
    planned: dict[str, float]


def compare_memory(measured: Measurement, gpu_memory_bytes: int) -> list[Engine]:
    """`gpu_memory_bytes`: of the card that was used, as its driver reports it."""
    gpu = replace(measured.gpu, memory_gib=gpu_memory_bytes / (1 << 30))
    most = max(case.k for case in measured.cases)
    found = []
    for table in measured.configurations:
        recorded = _recorded(table)
        if recorded:
            k = most if recorded.get("draft weights") else 0
            limits = Limits(
                max_model_len=measured.input_len + measured.output_len,
                max_num_seqs=int(table["max_num_seqs"]),
                max_num_batched_tokens=int(table["max_num_batched_tokens"]),
            )
            plan = plan_pair(
                gpu, measured.target, measured.draft, k, limits, tp=measured.tp, draft_tp=measured.draft_tp
            )
            found.append(Engine(k, recorded, _recorded(plan.describe())))
    return found


def _recorded(table: Mapping[str, str]) -> dict[str, float]:
    """The first number of every line of memory."""
    found = {}
    for name, words in table.items():
        number = re.match(r"([\d,]+) MiB", words)
        if name.startswith(_PREFIX) and number:
            found[name.removeprefix(_PREFIX)] = float(number.group(1).replace(",", ""))
    return found
