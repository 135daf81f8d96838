"""A drift within a run is said in words, whatever the intervals hide, and nothing is said of one that is steady."""

from __future__ import annotations

import numpy as np
import pytest
from bench_serve_fakes import info, raw, record, span

from paceline.bench.serve.across import combine
from paceline.bench.serve.drift import drift, moved_by
from paceline.bench.serve.intervals import Estimate
from paceline.bench.serve.latency import mean_concurrency
from paceline.bench.serve.records import Load, Raw, Record
from paceline.bench.serve.results import Comparison
from paceline.bench.serve.summary import summarize

ROUNDS = 6


def answers(arm: str, factors: list[float], noise: float, seed: int, prompts: range | None = None) -> list[Record]:
    """Sixteen a round, each at a pace of its prompt's own, times the round's factor."""
    generator = np.random.default_rng(seed)
    found = []
    for number, factor in enumerate(factors):
        for job in range(16):
            prompt = job if prompts is None else prompts[number * 16 + job]
            pace = (10 + prompt % 16) * factor * np.exp(generator.normal(0, noise))
            events = [(20_000 + round(place * pace * 1000), place + 1) for place in range(20)]
            found.append(
                record(arm, 4, round=number, number=job, prompt=prompt, start_us=job * 1000, end_us=events[-1][0],
                       events=events, completion_tokens=20)
            )  # fmt: skip
    return found


def run(on: list[float], off: list[float], noise: float = 0.02) -> Raw:
    spans = [span(arm, 4, round=number) for number in range(len(on)) for arm in ("on", "off")]
    return raw([info("on"), info("off")], spans, answers("on", on, noise, 1) + answers("off", off, noise, 2))


def test_a_machine_that_grows_slower_is_said_though_the_gain_stays() -> None:
    slower = np.linspace(1, 1.4, ROUNDS)
    results = summarize(run(list(slower / 2), list(slower)))
    (gain,) = results.comparisons
    assert gain.pace_gain is not None
    assert gain.pace_gain.value == pytest.approx(2, rel=0.03)
    (line,) = results.warnings
    assert "THE ARMS DID NOT STAY THE SAME" in line
    assert "on 1.3" in line
    assert "off 1.3" in line
    assert "at 4 users" in line
    assert "the baseline itself moved by more than the interval" in line


@pytest.mark.parametrize("seed", range(5))
def test_a_steady_run_says_nothing_however_noisy(seed: int) -> None:
    generator = np.random.default_rng(seed)
    noisy = np.exp(generator.normal(0, 0.005, (2, ROUNDS)))
    assert summarize(run(list(noisy[0]), list(noisy[1]), noise=0.3)).warnings == []


def said(on: list[float], off: list[float], half_width: float) -> list[str]:
    load = Load("users", 4)
    gain = Comparison("on", "off", load, Estimate(2, 2 - half_width, 2 + half_width), None, None)
    records = {("on", load): answers("on", on, 0.002, 1), ("off", load): answers("off", off, 0.002, 2)}
    return drift(records, "off", [gain])


def test_the_baseline_is_held_against_the_interval_of_the_gain() -> None:
    """3 % is little, but more than a narrow interval knows of; another arm is only named for much."""
    steady, drifting = [1.0] * ROUNDS, list(np.linspace(1, 1.04, ROUNDS))
    (line,) = said(steady, drifting, half_width=0.03)
    assert "off 1.03x" in line
    assert "on 1." not in line
    assert "At 4 users the baseline itself moved by more than the interval of the gain" in line
    assert said(steady, drifting, half_width=0.2) == []
    assert said(drifting, steady, half_width=0.03) == []


def test_thirds_without_common_prompts_are_compared_by_all_their_answers() -> None:
    many = range(16 * ROUNDS)
    steady = moved_by(answers("on", [1.0] * ROUNDS, 0.02, 1, many))
    slower = moved_by(answers("on", [1, 1, 1, 1, 1.5, 1.5], 0.02, 1, many))
    assert steady is not None
    assert slower is not None
    assert steady.value == pytest.approx(1, abs=0.02)
    assert slower.value == pytest.approx(1.5, rel=0.02)
    assert slower.low is not None
    assert slower.low > 1.2
    assert moved_by(answers("on", [1.0], 0.02, 1)) is None  # one round


def test_a_report_of_several_runs_keeps_what_each_was_warned_of() -> None:
    slower = list(np.linspace(1, 1.4, ROUNDS))
    both = combine([summarize(run([0.5] * ROUNDS, [1.0] * ROUNDS)), summarize(run(slower, slower))], None)
    assert any(line.startswith("Run 2: THE ARMS DID NOT STAY THE SAME") for line in both.warnings)


def test_rounds_of_an_open_loop_differ_by_their_arrivals_and_are_no_drift() -> None:
    slower = list(np.linspace(1, 1.6, ROUNDS))
    for kind, warned in (("users", True), ("rate", False)):
        load = Load(kind, 4)  # type: ignore[arg-type]
        assert bool(drift({("off", load): answers("off", slower, 0.002, 1)}, "off", [])) is warned


def test_requests_under_way_are_averaged_over_time_and_not_over_rounds() -> None:
    short, long = span("on", 4, round=0), span("on", 4, round=1)
    short.start_us, short.end_us, long.start_us, long.end_us = 0, 10_000_000, 10_000_000, 40_000_000
    found = answers("on", [1.0], 0.0, 1)[:2]
    found[0].end_us, found[1].end_us = 20_000_000, 30_000_000
    assert mean_concurrency([short, long], found) == pytest.approx(50 / 40)
