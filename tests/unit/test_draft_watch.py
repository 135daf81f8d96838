"""p32: drafts that are never taken are noticed, and only those."""

from __future__ import annotations

import logging
import random

import pytest

from paceline.engine import draft_watch
from paceline.engine.draft_watch import PROBE_PASSES, REST_STEPS, DraftWatch


def play(watch: DraftWatch, steps: int, rate: float, rng: random.Random) -> int:
    """`steps` steps of one row whose first draft is taken at `rate`; how many of them drafted."""
    drafted = 0
    for _ in range(steps):
        watch.start_step()
        if watch.allows_drafts:
            drafted += 1
            watch.record(5, int(rng.random() < rate))
    return drafted


def test_p32_no_draft_taken_switches_off_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    watch = DraftWatch()
    with caplog.at_level(logging.INFO, "paceline"):
        assert play(watch, 269, 0.0, random.Random(0)) == 269
        assert not watch.is_off
        play(watch, 1, 0.0, random.Random(0))
        assert watch.is_off
        drafted = play(watch, 10 * REST_STEPS, 0.0, random.Random(0))
    assert drafted <= 10 * PROBE_PASSES, "probes are rare"
    assert drafted >= 9 * PROBE_PASSES, "and they go on"
    assert watch.num_switch_offs == 1
    assert len(caplog.records) == 1
    assert "of the last 270 drafts the model took 0" in caplog.text


@pytest.mark.parametrize("rate", [0.08, 0.2, 0.7])
def test_a_draft_of_some_use_is_left_alone(rate: float) -> None:
    for seed in range(20):
        watch = DraftWatch()
        assert play(watch, 5000, rate, random.Random(seed)) == 5000


def test_a_bad_draft_is_noticed_however_long_it_was_good() -> None:
    watch = DraftWatch()
    play(watch, 10_000, 0.6, random.Random(1))
    play(watch, 60_000, 0.01, random.Random(2))
    assert watch.is_off


def test_p32_a_probe_that_wins_switches_on_again() -> None:
    watch = DraftWatch()
    play(watch, 300, 0.0, random.Random(0))
    assert watch.is_off
    play(watch, REST_STEPS + PROBE_PASSES, 0.5, random.Random(3))
    assert not watch.is_off
    assert play(watch, 2000, 0.5, random.Random(4)) == 2000
    assert watch.num_switch_offs == 1


def test_rows_without_drafts_are_no_evidence() -> None:
    watch = DraftWatch()
    for _ in range(5000):
        watch.record(0, 0)
    assert not watch.is_off


def test_the_bound_is_what_it_says() -> None:
    assert draft_watch._evidence(0, 270) > draft_watch._EVIDENCE > draft_watch._evidence(0, 269)
    assert draft_watch._evidence(5, 100) == pytest.approx(0.0, abs=1e-9)
