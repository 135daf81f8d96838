"""The controller inside of the engine, on the tagged model: who drafts, who rests, what is counted."""

from __future__ import annotations

import pytest
from engine.speculation_simulator import cpu_costs, gpu_costs
from engine.tagged import TaggedExecutor, make_engine, reference, request, run, tokens

from paceline.engine import rests
from paceline.engine.engine import Engine
from paceline.errors import ConfigurationError


def answer(engine: Engine, prompts: list[list[int]], max_tokens: int = 40) -> None:
    for name, prompt in enumerate(prompts):
        engine.add_request(request(str(name), prompt, max_tokens=max_tokens, ignore_eos=True))
    results = run(engine)
    for name, prompt in enumerate(prompts):
        assert tokens(results[f"{name}/0"]) == reference(prompt, max_tokens, eos=None)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_good_draft_is_used_and_running_ahead_goes_on(ahead: bool) -> None:
    executor = TaggedExecutor(num_blocks=200, ahead=ahead)
    engine = make_engine(executor, k=5, costs=gpu_costs())
    answer(engine, [[i, 5, 6] for i in range(4)])
    choices = engine.stats().choices
    assert choices is not None
    assert sum(choices.steps_by_k[1:]) > 0
    assert choices.steps_by_k[0] <= 1
    assert choices.achieved_tokens >= 4 * 36
    assert engine.stats().proposer == "draft"
    if ahead:
        assert executor.num_ahead >= engine.stats().num_steps - 4


@pytest.mark.parametrize("ahead", [False, True])
def test_p34_a_draft_that_rests_reads_nothing(ahead: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """K = 0 costs nothing: no pass of the draft, over new prompts neither; metrics say why."""
    monkeypatch.setattr(rests, "PROBE_SHARE", 0.1)
    executor = TaggedExecutor(num_blocks=400, ahead=ahead, accepts=lambda row, place: False)
    engine = make_engine(executor, k=5, costs=cpu_costs(), max_model_len=400)
    answer(engine, [[i, 5, 6] for i in range(8)], max_tokens=150)
    assert engine.stats().speculation_off
    choices = engine.stats().choices
    assert choices is not None
    planned, probes = len(executor.plans), choices.num_probes
    answer(engine, [[i, 4, 4] for i in range(8)])
    later = executor.plans[planned:]
    assert not any(row.draft_chunk for row in later[0].rows), "prompts are not read"
    reading = [plan for plan in later if any(row.draft_chunk for row in plan.rows)]
    assert len(reading) <= (rests.PROBE_STEPS + 2) * (choices.num_probes - probes)
    assert choices.num_probes - probes <= 2
    assert choices.rest_steps["acceptance"] > 30
    assert sum(choices.num_rests.values()) == 1


def test_a_mixed_batch_drafts_where_it_pays() -> None:
    executor = TaggedExecutor(num_blocks=400, accepts=lambda row, place: row.seq_id % 2 == 0)
    engine = make_engine(executor, k=5, costs=cpu_costs(), max_num_batched_tokens=200, max_model_len=400)
    answer(engine, [[i, 5, 6] for i in range(6)], max_tokens=150)
    both = [plan for plan in executor.plans[10:] if len(plan.rows) == 6]
    drafts = [0, 0]
    for row in (row for plan in both for row in plan.rows):
        drafts[row.seq_id % 2 == 0] += row.num_draft_tokens
    assert drafts[1] > 2 * 3 * len(both)
    assert drafts[0] < 0.1 * drafts[1]


def test_k_can_be_pinned_and_let_go() -> None:
    executor = TaggedExecutor(num_blocks=400)
    engine = make_engine(executor, k=5, costs=cpu_costs())
    for pinned in (0, 2):
        engine.set_num_speculative_tokens(pinned)
        planned = len(executor.plans)
        answer(engine, [[pinned, 5, 6]])
        assert {row.num_draft_tokens for plan in executor.plans[planned + 1 : -2] for row in plan.rows} == {pinned}
    with pytest.raises(ConfigurationError, match="made for 0 to 5"):
        engine.set_num_speculative_tokens(6)
    engine.set_num_speculative_tokens(None)
    answer(engine, [[9, 5, 6]])
    choices = engine.stats().choices
    assert choices is not None
    assert sum(choices.steps_by_k) > 0
