"""EarlyStop: the floor is where a draft stops being worth its row, and nothing is given up for good."""

from __future__ import annotations

import random

import pytest

from paceline.engine.early_stop import BINS, EarlyStop


def fed(honesty: float, steps: int = 200) -> EarlyStop:
    """Counts of drafts that are kept with probability honesty * confidence."""
    chance, stop = random.Random(0), EarlyStop(4)
    for _ in range(steps):
        for _ in range(8):
            confidence = chance.random()
            stop.record(1, int(chance.random() < honesty * confidence), 1, [confidence])
        stop.end_step()
    return stop


def test_before_anything_is_counted_confidence_is_honest() -> None:
    stop = EarlyStop(4)
    assert stop.floor(10.0, 0.03) == pytest.approx(0.3)
    assert stop.floor(10.0, 0.0) == 0.0  # nothing is dearer than free
    assert stop.floor(10.0, 9.0) == (BINS - 1) / BINS  # the surest are always tried
    assert stop.shares()[0] > 0.99


def test_an_overconfident_draft_needs_more_confidence() -> None:
    honest, boastful, shy = (fed(honesty).floor(10.0, 0.03) for honesty in (1.0, 0.5, 1.6))
    assert shy < honest < boastful
    assert honest == pytest.approx(0.3, abs=0.06)
    assert boastful == pytest.approx(0.6, abs=0.11)


def test_survival_never_falls_with_confidence() -> None:
    survival = fed(0.7).survival()
    assert survival == sorted(survival)
    assert len(survival) == BINS


def test_what_is_not_tried_any_more_is_forgotten_and_tried_again() -> None:
    stop = fed(0.2)
    before = stop.floor(10.0, 0.03)
    for _ in range(1000):
        stop.end_step()
    assert before > 0.8
    assert stop.floor(10.0, 0.03) == pytest.approx(0.3)


def test_shares_count_rows_that_ended_early_and_only_the_places_they_might_have_reached() -> None:
    stop = EarlyStop(3)
    for _ in range(400):
        stop.record(2, 0, 1, [0.5, 0.1])  # ended before its second draft
        stop.record(1, 1, 1, [0.9])  # might draft one alone
        stop.end_step()
    first, second, third = stop.shares()
    assert first > 0.99
    assert second < 0.02
    assert third == pytest.approx(1.0)  # nothing is known of it


def test_rows_without_confidences_say_nothing() -> None:
    stop = EarlyStop(2)
    stop.record(2, 0, 0, [])  # n-gram that found nothing; a captured step
    assert stop.shares() == [1.0, 1.0]
    assert stop.survival() == EarlyStop(2).survival()
