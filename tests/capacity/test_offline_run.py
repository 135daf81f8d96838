"""The tail of a benchmark, counted, against one that is played."""

from __future__ import annotations

import random

import numpy as np
import pytest

from paceline.capacity.offline_run import emitted_law, law_of_length, run_seconds, steps_of_run, unfinished


def test_law_of_a_pass() -> None:
    law = emitted_law(0.78, 3)
    assert law.sum() == pytest.approx(1)
    assert law == pytest.approx([0.22, 0.78 * 0.22, 0.78**2 * 0.22, 0.78**3])
    assert emitted_law(0.5, 0) == pytest.approx([1.0])
    assert law_of_length(2.863, 3) @ np.arange(1, 5) == pytest.approx(2.863)


def test_without_drafts_every_step_is_full() -> None:
    (steps,) = steps_of_run(emitted_law(0.0, 0), batch=32, input_len=100, output_len=51, sizes=[1, 16, 32])
    assert (steps.rows, steps.count) == (32, 50)
    assert steps.positions == pytest.approx(100 + 25.5)


def test_the_tail_is_what_a_played_benchmark_has() -> None:
    """Steps until the last of 64 sequences is done, and the rows of all steps together."""
    law, generator = emitted_law(0.78, 3), random.Random(0)
    lengths, rows = [], []
    for _ in range(12):
        needed = []
        for _ in range(64):
            emitted = steps = 0
            while emitted < 255:
                emitted += generator.choices([1, 2, 3, 4], law)[0]
                steps += 1
            needed.append(steps)
        lengths.append(max(needed))
        rows.append(sum(needed))
    steps = steps_of_run(law, batch=64, input_len=1, output_len=256, sizes=[])
    assert sum(group.count for group in steps) == pytest.approx(np.mean(lengths), rel=0.01)
    assert sum(group.count * group.rows for group in steps) == pytest.approx(np.mean(rows), rel=0.02)
    assert run_seconds(steps, lambda rows, positions: 1.0) == pytest.approx(np.mean(lengths), rel=0.01)


def test_rows_are_padded_to_the_captured_sizes() -> None:
    steps = steps_of_run(emitted_law(0.78, 3), batch=12, input_len=1, output_len=64, sizes=[1, 2, 4, 8, 16])
    assert {group.rows for group in steps} <= {1, 2, 4, 8, 16}
    assert max(group.rows for group in steps) == 16


def test_shares_fall_and_end() -> None:
    shares = unfinished(emitted_law(0.6, 5), 100)
    assert shares[0] == 1.0
    assert np.all(np.diff(shares) <= 1e-12)
    assert len(shares) <= 101
