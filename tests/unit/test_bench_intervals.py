"""95 % intervals of few rounds: what requests of one round share is in them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from bench_serve_fakes import info, raw, record, span, two_arms

from paceline.bench.serve.compare import Verdict, verdict
from paceline.bench.serve.intervals import Estimate, Slices, among_rounds, ratio
from paceline.bench.serve.summary import summarize

GAIN = 1.2
REQUESTS = 12


def gain_of(rng: np.random.Generator, rounds: int, shared: float) -> Estimate:
    """Paces of `rounds` rounds: noise of a fifth for each request, and of `shared` for each turn of an arm."""
    above = [np.exp(rng.normal(0, shared) + rng.normal(0, 0.2, REQUESTS)) for _ in range(rounds)]
    below = [np.exp(rng.normal(0, shared) + rng.normal(0, 0.2, REQUESTS)) / GAIN for _ in range(rounds)]
    found = ratio(np.concatenate(above), np.concatenate(below), paired=True)
    wider = among_rounds(found, [float(a.mean() / b.mean()) for a, b in zip(above, below, strict=True)])
    assert wider is not None
    return wider


@pytest.mark.parametrize("rounds", [1, 2, 3, 5])
@pytest.mark.parametrize("shared", [0.0, 0.1, 0.2])
def test_intervals_hold_the_truth_as_often_as_they_say(rounds: int, shared: float) -> None:
    """Three runs of one set-up had said 0.72, 0.79 and 1.22 times, each with confidence."""
    rng = np.random.default_rng(rounds)
    found = [gain_of(rng, rounds, shared) for _ in range(100)]
    holds = [one.low <= GAIN <= one.high for one in found if one.low is not None and one.high is not None]
    assert len(holds) == 100
    assert sum(holds) >= (90 if shared < 0.2 else 80)
    if not shared and rounds >= 3:
        widths = sorted(one.high / one.low for one in found if one.low is not None and one.high is not None)
        assert widths[50] < 1.35


def test_a_single_round_shows_only_large_gains() -> None:
    alone = among_rounds(Estimate(1.2, 1.19, 1.21), [1.2])
    assert alone is not None
    assert alone.low == pytest.approx(1.2 / math.exp(12.706 * 0.06), rel=1e-3)
    assert verdict(alone) is Verdict.UNSURE
    three = among_rounds(Estimate(1.2, 1.19, 1.21), [1.2, 1.2, 1.2])
    assert three is not None
    assert three.low is not None
    assert 1.1 < three.low < 1.15
    assert verdict(three) is Verdict.MORE


def test_nothing_is_made_up_where_there_is_nothing() -> None:
    assert among_rounds(None, [1.0]) is None
    assert among_rounds(Estimate(2.0), [1.0, 3.0]) == Estimate(2.0)
    assert among_rounds(Estimate(0.0, 0.0, 1.0), [1.0, 3.0]) == Estimate(0.0, 0.0, 1.0)
    assert among_rounds(Estimate(2.0, 1.0, 3.0), [0.0]) == Estimate(2.0, 1.0, 3.0)
    share = among_rounds(Estimate(0.9, 0.8, 1.0), [0.5, 1.0], most=1.0)
    assert share is not None
    assert share.high == 1.0


def test_slices_know_their_rounds() -> None:
    slices = Slices(np.repeat([1.0, 3.0], 10), np.repeat([1.0, 2.0], 10))
    assert slices.by_round == [1.0, 3.0]
    assert Slices(np.ones(7), np.ones(7)).by_round == []


def test_too_few_answers_make_no_interval_and_no_claim() -> None:
    """Two requests an arm gave '0 to 1,884'."""
    records = [
        record(arm, number=number, start_us=number * 170_000, end_us=161_000)
        for arm in ("on", "off")
        for number in range(2)
    ]
    found = summarize(raw([info("on"), info("off")], [span("on", place=0), span("off", place=1)], records))
    (compared,) = found.comparisons
    assert compared.throughput_gain is not None
    assert compared.throughput_gain.low is None
    assert verdict(Estimate(1.5)) is Verdict.UNKNOWN
    assert "by the values alone" in found.break_even[0].words or compared.throughput_gain.value == 1
    assert all(case.output_tok_s is not None and case.output_tok_s.low is None for case in found.cases)


def test_rounds_that_differ_widen_every_figure() -> None:
    """Of a case: tokens a second, latencies, goodput."""
    calm = summarize(two_arms(users=(8,), gains=(1.5,), rounds=3))
    wild = two_arms(users=(8,), gains=(1.5,), rounds=3)
    for one in wild.records:
        if one.round == 1:
            one.end_us = 2 * one.end_us
            one.events = [(2 * micros, tokens) for micros, tokens in one.events]
    for before, after in zip(calm.cases, summarize(wild).cases, strict=True):
        for metric in ("ttft", "tpot", "e2e"):
            one, two = before.latency_ms[metric]["mean"], after.latency_ms[metric]["mean"]
            assert one.value < two.value
            assert two.low is not None
            assert two.high is not None
            assert two.high / two.low > 2
