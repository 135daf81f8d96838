"""The draft model and the text side by side on real (tiny) forward passes: texts do not depend on who drafted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from model.pairs import generate, make_llm, make_pair, prompts, texts

from paceline import LLM, SamplingParams
from paceline.engine.controller import SpeculationController
from paceline.engine.curves import Curve
from paceline.engine.engine import Engine
from paceline.engine.step_costs import RaggedCosts

# Prompts that repeat themselves, so that lookups find something; what follows is the tiny model's own affair.
IDS = [prompt + prompt[:12] for prompt in prompts(6, seed=4, low=12, high=20)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def either(pair: tuple[Path, Path]) -> Iterator[LLM]:
    with make_llm(pair[0], {"model": str(pair[1]), "num_speculative_tokens": 4, "prompt_lookup_min": 1}) as llm:
        yield llm


def asking(proposer: str | None, **params: object) -> SamplingParams:
    given = {"temperature": 0.0, "max_tokens": 40, "ignore_eos": True, "speculation": {"proposer": proposer}}
    return SamplingParams(**{**given, **params})


@pytest.fixture(scope="module")
def plain_texts(pair: tuple[Path, Path]) -> list[list[int]]:
    with make_llm(pair[0]) as llm:
        return texts(llm, IDS, asking(None))


def test_greedy_texts_do_not_depend_on_the_proposer(either: LLM, plain_texts: list[list[int]]) -> None:
    for proposers in (["auto"] * 6, ["ngram"] * 6, ["draft", "ngram", "auto", "ngram", "draft", None]):
        either._engine.reset_prefix_cache()  # type: ignore[union-attr]
        assert texts(either, IDS, [asking(proposer) for proposer in proposers]) == plain_texts
    counts = either.stats().speculation.by_proposer
    assert all(0 < part.num_accepted_tokens < part.num_draft_tokens for part in counts.values())


def test_nor_do_they_where_the_controller_chooses(either: LLM, plain_texts: list[list[int]]) -> None:
    engine = either._engine
    assert isinstance(engine, Engine)
    before = either.stats().speculation.ngram.num_drafts
    for draft in (0.02, 0.5):  # passes of the draft are cheap, or dear
        costs = RaggedCosts(Curve([1, 64], [1.0, 2.0]), Curve([1, 64], [draft, draft]))
        engine._scheduler.drafts.controller = engine._controller = SpeculationController(costs, 4)
        engine.reset_prefix_cache()
        assert texts(either, IDS, asking("auto")) == plain_texts
    engine._scheduler.drafts.controller = engine._controller = None
    assert either.stats().speculation.ngram.num_drafts > before


def test_p05_a_seeded_text_is_the_draft_models_under_auto(either: LLM) -> None:
    """Whatever has been learnt, and alone or beside others: with a seed `auto` is `draft`."""
    seeded = [asking("draft", temperature=0.9, seed=i, max_tokens=24) for i in range(3)]
    expected = texts(either, IDS[:3], seeded)
    auto = [asking("auto", temperature=0.9, seed=i, max_tokens=24) for i in range(3)]
    assert (
        texts(either, IDS, [*auto, asking("auto"), asking("ngram"), asking("ngram", temperature=1.0)])[:3] == expected
    )
    ngram = [asking("ngram", temperature=0.9, seed=i, max_tokens=24) for i in range(3)]
    alone = [texts(either, [prompt], [params])[0] for prompt, params in zip(IDS, ngram, strict=False)]
    assert texts(either, IDS[:5], [*ngram, asking("auto"), asking("draft")])[:3] == alone


def test_an_answer_says_what_drafted_for_it(either: LLM) -> None:
    outputs = generate(either, IDS[:2], [asking("draft"), asking("ngram")])
    drafted, looked_up = (output.metrics.speculative_decoding.by_proposer for output in outputs)
    assert drafted["draft"].num_drafts > 0 == drafted["ngram"].num_drafts
    assert looked_up["ngram"].num_drafts > 0 == looked_up["draft"].num_drafts
