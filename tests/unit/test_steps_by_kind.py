"""Benchmarks on a busy machine: a step counts with the usual time of its kind."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from steps_by_kind import Kind, kind_of, settled_seconds


def test_a_burst_hardly_moves_what_a_run_is_said_to_take() -> None:
    rng = random.Random(0)
    usual: dict[Kind, float] = {(8, 0, 0): 0.020, (8, 8, 1): 0.030, (8, 11, 5): 0.034}

    def steps(count: int) -> list[tuple[Kind, float]]:
        kinds = rng.choices(list(usual), k=count)
        return [(kind, usual[kind] * rng.gauss(1, 0.05) * (8 if rng.random() < 0.1 else 1)) for kind in kinds]

    runs = [steps(60) for _ in range(5)]
    runs[1] = [(kind, 2 * seconds) for kind, seconds in runs[1]]  # a whole run in a slow moment
    settled = settled_seconds(runs)
    for run, seconds in zip(runs, settled, strict=True):
        assert seconds == pytest.approx(sum(usual[kind] for kind, _ in run), rel=0.08)
    assert sum(took for run in runs for _, took in run) > 1.3 * sum(settled)


def test_a_kind_is_what_a_step_computes() -> None:
    assert kind_of([0, 5, 0, 2]) == kind_of([2, 5, 0, 0]) == (4, 7, 5)
    assert kind_of([]) == (0, 0, 0)
    assert settled_seconds([]) == []
