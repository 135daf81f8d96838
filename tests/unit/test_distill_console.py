"""What `paceline distill` says and when it stops: lines for events, advice, signals."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from paceline.cli.distill import duration, held_out_words, words
from paceline.distill.card import advice
from paceline.distill.interrupt import Interrupts
from paceline.distill.recipe import OptimizerChoice

FIGURES = {
    "chat": {"accepted_at_0.7": 0.6, "tokens_per_pass": 2.0},
    "data": {"accepted_at_0.7": 0.7, "tokens_per_pass": 3},
}


def test_events_become_lines() -> None:
    assert held_out_words(FIGURES) == "accepted 65% · 2.50 tok/pass"
    estimate = {
        "steps": 1200, "rounds": 9, "positions": 3_000_000, "seconds": 3000.0, "seconds_per_step": 2.0,
        "seconds_per_round": 60.0,
    }  # fmt: skip
    assert words("estimate", estimate).startswith("1,200 steps on 3,000,000 positions, 9 rounds of text: about 50 min")
    choice = str(OptimizerChoice("muon", 0.005, 0.006))
    assert words("candidate", {"choice": choice, "held_out": FIGURES}).startswith("muon:0.005:0.006: accepted 65%")
    assert words("resumed", {"step": 1000, "steps": 5000}) == "Going on after step 1,000 of 5,000."
    assert words("fork", {"losses": []}) == ""  # only in the log
    assert [duration(s) for s in (59.6, 600, 9000)] == ["60 s", "10 min", "2.5 h"]


def report(best: int, **speeds: tuple[float, float, float]) -> dict[str, Any]:
    names = ("low", "expected", "high")
    return {"best_k": best, "speed_up": {k[1:]: dict(zip(names, v, strict=True)) for k, v in speeds.items()}}


def test_advice_is_honest() -> None:
    assert advice(report(3, k1=(1.0, 1.1, 1.2), k3=(1.3, 1.4, 1.5))).endswith("1.40 times plain.")
    assert "within the noise of 0.90 to 1.20" in advice(report(1, k1=(0.9, 1.02, 1.2)))
    assert "does not pay" in advice(report(0, k1=(0.7, 0.8, 0.9), k2=(0.5, 0.6, 0.7)))


@pytest.mark.usefixtures("no_signal_is_ignored")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_waits_until_the_step_is_done(number: signal.Signals) -> None:
    interrupts, done = Interrupts(), []
    before = signal.getsignal(number)

    def step() -> None:
        with interrupts.deferred():
            with interrupts.deferred():
                os.kill(os.getpid(), number)
                done.append("inner")
            done.append("outer")

    with interrupts.listening():
        with pytest.raises(KeyboardInterrupt):
            step()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)  # outside of a step it stops at once
        with interrupts.deferred():
            done.append("no signal is left over")
    assert len(done) == 3
    assert interrupts.status == {signal.SIGTERM: 143, signal.SIGHUP: 129}.get(number)
    assert signal.getsignal(number) is before
