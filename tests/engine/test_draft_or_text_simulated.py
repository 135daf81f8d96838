"""`auto` on a simulated CPU: as fast as the better of the draft model alone, texts alone and no drafts."""

from __future__ import annotations

import random

import pytest
from engine.speculation_simulator import Machine, native_costs, steady
from engine.text_simulator import RightAt, TextRequest, run_with_texts

from paceline.engine.controller import SpeculationController
from paceline.engine.goodput import HORIZON
from paceline.engine.spells import Spells


def guessed(length: int) -> float:
    """What the engine thinks at first."""
    return 0.5 if length < 3 else 0.65 if length < 5 else 0.85 if length < 16 else 0.95


LAWS: dict[str, RightAt] = {
    "copies": lambda length: 0.97,
    "as guessed": guessed,
    "misleads": lambda length: 0.08,
}


NO_TEXT = "nothing repeats"


def rate(proposer: str, kinds: list[str], draft: float, steps: int = 300) -> float:
    """Tokens a second, over two runs from the first step on."""
    found = []
    for seed in range(2):
        machine = Machine(native_costs(), random.Random(seed), jitter=0.02)
        controller = SpeculationController(native_costs(), 5) if proposer != "none" else None
        requests = [
            TextRequest(index, steady(draft), right_at=LAWS.get(kind, guessed), found=0.0 if kind == NO_TEXT else 0.6)
            for index, kind in enumerate(kinds)
        ]
        found.append(run_with_texts(machine, controller, requests, steps, proposer=proposer).rate)
    return sum(found) / len(found)


@pytest.mark.parametrize("draft", [0.75, 0.2])
@pytest.mark.parametrize(
    "kinds",
    [
        ["copies"],
        ["copies", NO_TEXT],
        ["copies", "misleads"],
        ["as guessed", NO_TEXT],
        ["copies", NO_TEXT] * 2,
        ["copies", NO_TEXT] * 4,
    ],
    ids=lambda kinds: f"{len(kinds)} {', '.join(dict.fromkeys(kinds))}",
)
def test_auto_is_never_slower_than_the_better_of_draft_and_text_and_none(kinds: list[str], draft: float) -> None:
    """Half of the requests copy. At one and two it was 0.945 to 0.97: the draft caught up for one step, and paid as if
    for many."""
    alone = max(rate("draft", kinds, draft), rate("ngram", kinds, draft), rate("none", kinds, draft, steps=5))
    assert rate("auto", kinds, draft) >= 0.98 * alone


@pytest.mark.parametrize(("draft", "least"), [(0.75, 0.98), (0.2, 0.96)])
def test_a_text_that_misleads_is_found_out(draft: float, least: float) -> None:
    """With a draft that is of no use either, the few steps in which that is learnt are 3 % of three hundred."""
    kinds = ["misleads"]
    alone = max(rate("draft", kinds, draft), rate("none", kinds, draft, steps=5))
    assert rate("auto", kinds, draft) >= least * alone


def test_spells_are_as_long_as_they_were() -> None:
    spells = Spells()
    for _ in range(50):
        spells.end_step(1, by_text=False, by_model=True)
    assert spells.expected(1) == HORIZON, "no text to go back to"
    for _ in range(30):
        spells.end_step(1, by_text=True, by_model=False)
        spells.end_step(1, by_text=False, by_model=False)
        spells.end_step(1, by_text=False, by_model=True)
        spells.end_step(1, by_text=False, by_model=True)
    assert spells.expected(1) == pytest.approx(2.0, abs=0.3)
    for _ in range(4000):
        spells.end_step(1, by_text=False, by_model=True)
    assert spells.expected(1) == HORIZON
    spells.forget(1)
    assert spells.expected(1) == HORIZON
