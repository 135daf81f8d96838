"""A draft that is not sure ends its row early: fewer rows in the target's pass, the same text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from model.pairs import generate, make_llm, make_pair, prompts, texts

from paceline import LLM, SamplingParams
from paceline.engine.controller import SpeculationController
from paceline.engine.early_stop import EarlyStop
from paceline.engine.engine import Engine
from paceline.engine.step_costs import Curve, RaggedCosts, Refresher
from paceline.layers.sampling import SamplingBatch
from paceline.plan import RowPlan, SamplingPlan

GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
# Drafts cost next to nothing, and no timing changes that.
FREE = RaggedCosts(Curve([1.0, 64.0], [1.0, 1.001]), Curve([1.0, 64.0], [1e-6, 2e-6]), refresher=Refresher(0.0, 0.0))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PACELINE_HOME", str(tmp_path_factory.mktemp("home")))
        yield make_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture
def adaptive(pair: tuple[Path, Path]) -> Iterator[LLM]:
    """Drafts as many as it may, whatever the machine."""
    speculative = {"model": str(pair[1]), "num_speculative_tokens": 4, "adaptive": True}
    with make_llm(pair[0], speculative, device="cpu") as llm:
        controller_of(llm).costs = FREE
        yield llm


def controller_of(llm: LLM) -> SpeculationController:
    assert isinstance(llm._engine, Engine)
    controller = llm._engine._controller
    assert controller is not None
    return controller


def with_floor(monkeypatch: pytest.MonkeyPatch, floor: float) -> None:
    monkeypatch.setattr(EarlyStop, "floor", lambda self, rate, seconds: floor)


def test_greedy_text_is_the_same_and_fewer_drafts_are_lost(
    pair: tuple[Path, Path], adaptive: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = prompts(6, low=4)
    with make_llm(pair[0], device="cpu") as plain:
        wanted = texts(plain, ids, GREEDY)
    lost = {}
    for floor in (0.0, 0.1):
        with_floor(monkeypatch, floor)
        outputs = generate(adaptive, ids, GREEDY)
        assert [list(output.outputs[0].token_ids) for output in outputs] == wanted
        counts = [output.metrics.speculative_decoding for output in outputs]
        drafted = sum(count.num_draft_tokens for count in counts)
        lost[floor] = (drafted - sum(count.num_accepted_tokens for count in counts)) / drafted
    assert lost[0.1] < lost[0.0]
    assert controller_of(adaptive).early_stop.shares()[3] < 0.99


def test_a_floor_that_nothing_reaches_drafts_nothing(adaptive: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    with_floor(monkeypatch, 1.1)
    mixed = [GREEDY, SamplingParams(temperature=0.8, max_tokens=12, ignore_eos=True)]
    outputs = generate(adaptive, prompts(2, low=4), mixed)
    assert [output.metrics.speculative_decoding.num_draft_tokens for output in outputs] == [0, 0]


def test_a_seed_gives_one_text_whatever_the_floor(adaptive: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = prompts(3, low=4)
    params = [SamplingParams(temperature=0.9, seed=seed, max_tokens=24, ignore_eos=True) for seed in range(3)]
    found = []
    for floor in (0.0, 0.6):
        with_floor(monkeypatch, floor)
        adaptive.generate([{"prompt_token_ids": ids[0]}], GREEDY, use_tqdm=False)  # the floor has an effect on others
        found.append(texts(adaptive, ids, params))
    assert found[0] == found[1]


def test_peaks_are_those_of_the_law_drawn_from() -> None:
    """Greedy rows at temperature 1, random rows behind temperature, top_k and the rest; selected rows keep theirs."""
    plans = [
        SamplingPlan(temperature=0.0),
        SamplingPlan(temperature=2.0),
        SamplingPlan(temperature=1.0, top_k=1),
        SamplingPlan(temperature=0.0, allowed_token_ids=(3,)),
    ]
    rows = [RowPlan(seq_id=n, block_table=[1], start=0, token_ids=[1], sampling=plan) for n, plan in enumerate(plans)]
    logits = torch.arange(8.0).expand(4, 1, 8).clone()
    law = SamplingBatch(rows, torch.device("cpu")).law(logits, torch.empty(4, 0, dtype=torch.int64), with_peaks=True)
    assert law.peaks is not None
    expected = [logits[0, 0].softmax(-1).max().item(), (logits[0, 0] / 2).softmax(-1).max().item(), 1.0, 1.0]
    assert law.peaks[:, 0].tolist() == pytest.approx(expected)
    some = law.select([1, 3])
    assert some.peaks is not None
    assert some.peaks[:, 0].tolist() == pytest.approx([expected[1], 1.0])
    assert some.random_rows.tolist() == [0]
    assert some.probs is not None
    assert some.probs.shape[0] == 1
    assert law.select([0, 3]).probs is None
