"""The controller over real (tiny) models: costs are measured and kept, texts do not depend on its choices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from model.pairs import generate, make_llm, make_pair, prompts, texts
from model.test_captured import with_captured_steps
from model.torch_forward import torch_forward

from paceline import LLM, SamplingParams
from paceline.engine import cost_cache
from paceline.engine.calibration import measure_costs, still_fits
from paceline.engine.controller import SpeculationController
from paceline.engine.curves import Curve
from paceline.engine.engine import Engine
from paceline.engine.step_costs import PaddedCosts, RaggedCosts

GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PACELINE_HOME", str(tmp_path_factory.mktemp("home")))
        yield make_pair(tmp_path_factory.mktemp("pair"))


def adaptive(pair: tuple[Path, Path], k: int = 4) -> LLM:
    return make_llm(pair[0], {"model": str(pair[1]), "num_speculative_tokens": k, "adaptive": True}, device="cpu")


def engine_of(llm: LLM) -> Engine:
    assert isinstance(llm._engine, Engine)
    return llm._engine


def test_costs_are_measured_once_and_kept(pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    with adaptive(pair, k=3) as llm:
        controller = engine_of(llm)._controller
        assert controller is not None
        costs = controller.costs
        assert isinstance(costs, RaggedCosts)
        assert 0 < costs.seconds(1, (), 0.0) <= costs.seconds(8, (), 0.0) <= costs.seconds(8, [8, 8, 8], 0.0)
        assert costs.drafting([1]) > 0
        assert texts(llm, prompts(2), GREEDY)  # its measuring has left nothing behind
        assert "K from 0 to 3" in llm.describe()["speculation"]

    def never(*arguments: object) -> RaggedCosts:
        raise AssertionError("measured again")

    monkeypatch.setattr(cost_cache, "measure_costs", never)
    monkeypatch.setattr(cost_cache, "still_fits", lambda *arguments: True)  # it was measured beside other tests
    with adaptive(pair, k=3) as again:
        kept = engine_of(again)._controller
        assert kept is not None
        assert isinstance(kept.costs, RaggedCosts)
        assert kept.costs.draft == costs.draft or kept.costs.draft.sizes == costs.draft.sizes
    with pytest.raises(AssertionError, match="measured again"):
        adaptive(pair, k=2)


def test_a_table_measured_on_a_busy_machine_is_measured_again(pair: tuple[Path, Path]) -> None:
    """And one that is faster than what runs now is kept: the machine is busy now."""
    with adaptive(pair, k=3) as llm:
        engine = engine_of(llm)
        for seconds, is_kept in ((30.0, False), (1e-6, True)):
            costs = RaggedCosts(Curve([1, 64], [seconds, seconds]), Curve([1, 64], [1e-6, 1e-6]))
            assert still_fits(costs, engine.config, engine._executor) is is_kept
        dear_draft = RaggedCosts(Curve([1, 64], [1e-6, 1e-6]), Curve([1, 64], [30.0, 30.0]))
        assert not still_fits(dear_draft, engine.config, engine._executor)
        assert texts(llm, prompts(2), GREEDY)  # its steps have left nothing behind


def test_greedy_texts_do_not_depend_on_the_choices(pair: tuple[Path, Path]) -> None:
    ids = prompts(8, seed=3)
    with make_llm(pair[0], device="cpu") as plain:
        expected = texts(plain, ids, GREEDY)
    with adaptive(pair) as llm:
        for costs in (
            RaggedCosts(Curve([1, 64], [1.0, 1.1]), Curve([1, 64], [0.01, 0.02])),  # drafts pay
            RaggedCosts(Curve([1, 64], [1.0, 30.0]), Curve([1, 64], [0.2, 0.3])),  # it depends
            RaggedCosts(Curve([1, 64], [1.0, 64.0]), Curve([1, 64], [1.0, 1.0])),  # they never do
        ):
            engine = engine_of(llm)
            controller = SpeculationController(costs, 4)
            engine._scheduler.drafts.controller = engine._controller = controller
            engine.reset_prefix_cache()
            assert texts(llm, ids, GREEDY) == expected
            assert sum(controller.counts.steps_by_k) > 0


def test_p05_a_seed_gives_one_text_whatever_the_controller_does(pair: tuple[Path, Path]) -> None:
    """A request with a seed of its own keeps its K: alone, in company, and with drafts that cost too much."""
    ids = prompts(4, seed=5)
    seeded = [SamplingParams(temperature=0.9, seed=i, max_tokens=24, ignore_eos=True) for i in range(4)]
    company = [SamplingParams(temperature=0.9, max_tokens=30, ignore_eos=True)] * 4
    with make_llm(pair[0], {"model": str(pair[1]), "num_speculative_tokens": 4}, device="cpu") as fixed:
        expected = texts(fixed, ids, seeded)
    with adaptive(pair) as llm:
        assert texts(llm, ids, seeded) == expected
        dear = RaggedCosts(Curve([1, 64], [1.0, 64.0]), Curve([1, 64], [1.0, 1.0]))
        engine = engine_of(llm)
        engine._scheduler.drafts.controller = engine._controller = SpeculationController(dear, 4)
        outputs = generate(llm, ids + prompts(4, seed=6), seeded + company)
        assert [list(output.outputs[0].token_ids) for output in outputs[:4]] == expected


def test_captured_steps_are_measured_each_and_followed(pair: tuple[Path, Path]) -> None:
    with make_llm(pair[0], device="cpu") as plain:
        expected = texts(plain, prompts(6), GREEDY)
    with torch_forward():
        llm = with_captured_steps(make_llm(pair[0], {"model": str(pair[1]), "num_speculative_tokens": 3}), k=3)
    engine = engine_of(llm)
    costs = measure_costs(engine.config, engine._executor)
    assert isinstance(costs, PaddedCosts)
    assert (costs.sizes, costs.draft_counts) == ([1, 2, 4, 6, 8], [0, 1, 2, 3])
    assert all(0 < row[0] <= row[1] <= row[2] <= row[3] for row in costs.table)
    controller = SpeculationController(costs, 3)
    engine._scheduler.drafts.controller = engine._controller = controller
    assert texts(llm, prompts(6), GREEDY) == expected
    stats = engine.stats()
    assert stats.choices is not None
    assert sum(stats.choices.steps_by_k) >= stats.num_captured_steps > 0
