"""A draft that has rested reads what it missed, and the step behind it is a captured one all the same."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from model.pairs import make_llm, make_pair, prompts, texts
from model.test_captured import GREEDY, drafting, with_captured_steps, worker_of
from model.torch_forward import torch_forward

from paceline import LLM, SamplingParams
from paceline.plan import RowPlan
from paceline.sequence import EngineRequest
from paceline.speculative.catch_up import lags

K = 4


@pytest.fixture(autouse=True)
def without_native_forward() -> Iterator[None]:
    with torch_forward():
        yield


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_pair(tmp_path_factory.mktemp("pair"))


def run(llm: LLM, ids: list[list[int]], params: list[SamplingParams], *, rests: int, drafts: int) -> list[list[int]]:
    """Texts, with K = 0 for `rests` steps and K = 4 for `drafts` steps in turn; two requests come at a time."""
    engine, found = llm._engine, defaultdict(list)
    waiting = list(zip(range(len(ids)), ids, params, strict=True))
    step = 0
    while waiting or engine.has_unfinished():
        if waiting and step % 5 == 0:
            for index, prompt, wanted in waiting[:2]:
                engine.add_request(
                    EngineRequest(request_id=str(index), prompt_token_ids=prompt, sampling_params=wanted)
                )
            waiting = waiting[2:]
        engine.set_num_speculative_tokens(0 if step % (rests + drafts) < rests else K)
        for delta in engine.step():
            assert delta.error is None
            found[int(delta.request_id)].extend(delta.token_ids)
        engine.check_integrity()
        step += 1
    return [found[index] for index in range(len(ids))]


@pytest.mark.parametrize(("rests", "drafts"), [(3, 2), (1, 1), (7, 4), (2, 5)])
def test_p34_steps_behind_a_rest_are_captured_and_the_text_is_right(
    pair: tuple[Path, Path], rests: int, drafts: int
) -> None:
    target, draft = pair
    ids = prompts(8, seed=6)
    expected = texts(make_llm(target, device="cpu"), ids, GREEDY)
    llm = with_captured_steps(make_llm(target, drafting(draft, K)), k=K)
    assert run(llm, ids, [GREEDY] * 8, rests=rests, drafts=drafts) == expected
    stats = llm._engine.stats()
    assert stats.num_captured_steps == stats.num_decode_steps > 0
    assert stats.speculation.num_accepted_tokens > 0


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_what_was_read_late_is_what_would_have_been_read_in_time(pair: tuple[Path, Path], temperature: float) -> None:
    """The target as its own draft: one wrong key would cost acceptance, which is all of it otherwise."""
    llm = with_captured_steps(make_llm(pair[0], drafting(pair[0], K)), k=K)
    wanted = [SamplingParams(temperature=temperature, seed=i, max_tokens=24, ignore_eos=True) for i in range(8)]
    run(llm, prompts(8, seed=7), wanted, rests=5, drafts=2)
    drafted = llm._engine.stats().speculation
    assert drafted.num_accepted_tokens == drafted.num_draft_tokens > 50


def test_p31_nan_in_what_is_read_late_costs_the_drafts_and_nothing_else(pair: tuple[Path, Path]) -> None:
    target, draft = pair
    ids = prompts(4, seed=2)
    expected = texts(make_llm(target, device="cpu"), ids, GREEDY)
    llm = with_captured_steps(make_llm(target, drafting(draft, K)), k=K)
    poisoned = worker_of(llm).draft
    assert poisoned is not None
    poisoned.model.embedding[expected[1][4]] = float("nan")
    assert run(llm, ids, [GREEDY] * 4, rests=7, drafts=2) == expected
    assert llm._engine.stats().draft_failures > 0


def test_which_rows_are_late() -> None:
    def row(draft_start: int, chunk: int, drafts: int) -> RowPlan:
        return RowPlan(
            seq_id=1, block_table=[1, 2, 3], start=9, token_ids=[5], draft_start=draft_start,
            draft_chunk=list(range(chunk)), num_draft_computed_tokens=draft_start, num_draft_tokens=drafts,
        )  # fmt: skip

    assert not lags(row(8, 2, 3)), "the last two tokens are read in any case"
    assert not lags(row(9, 1, 3))
    assert not lags(row(0, 0, 0)), "a draft at rest reads nothing"
    assert lags(row(7, 3, 3))
    assert lags(row(0, 10, 1))
    assert lags(row(0, 4, 0)), "a part of the prompt, and no drafts yet"
