"""Pitfalls of batches, KV and scheduling, on the tagged-KV model. Numbers as in docs/pitfalls.md."""

from __future__ import annotations

import pytest
from engine.tagged import (
    EOS,
    TaggedExecutor,
    always,
    make_engine,
    never,
    next_token,
    reference,
    request,
    run,
    tokens,
)

from paceline.engine import draft_watch
from paceline.errors import InvalidRequestError
from paceline.plan import RowPlan
from paceline.sequence import FinishReason, SequenceDelta

PROMPTS = [[i % 7, (3 * i) % 11, i] + [j % 5 for j in range(i)] for i in range(8)]


def finish(deltas: list[SequenceDelta]) -> FinishReason | None:
    assert all(delta.finish_reason is None for delta in deltas[:-1]), "something came after the end"
    return deltas[-1].finish_reason


def prompt_with_eos_at(place: int) -> list[int]:
    """A prompt whose reference text has its first EOS at that place (from 0)."""
    for seed in range(100_000):
        prompt = [seed % 49, seed // 49 % 49, seed // 2401, 5, 8]
        if len(reference(prompt, place + 1)) == place + 1 and reference(prompt, place + 1)[-1] == EOS:
            return prompt
    raise AssertionError("no such prompt")


@pytest.mark.parametrize("has_draft", [True, False])
def test_p12_ragged_acceptance_equals_solo_runs(has_draft: bool) -> None:
    """Row i of a batch of 8 accepts i mod (K+1) drafts a step; every text is that of the solo run."""
    executor = TaggedExecutor(num_blocks=200, has_draft=has_draft, accepts=lambda row, place: place < row.seq_id % 6)
    engine = make_engine(executor, max_num_batched_tokens=200)
    for i, prompt in enumerate(PROMPTS):
        engine.add_request(request(str(i), prompt, max_tokens=20, ignore_eos=True))
    results = run(engine)
    for i, prompt in enumerate(PROMPTS):
        assert tokens(results[f"{i}/0"]) == reference(prompt, 20, eos=None)
    accepted = {delta.num_accepted for deltas in results.values() for delta in deltas}
    assert accepted >= {0, 1, 2, 3, 4, 5}


def test_p14_watermarks_agree_with_what_the_worker_computed() -> None:
    """The plan's `start` must be exactly where the worker's valid KV ends, for both pools, at every step."""
    executor = TaggedExecutor(accepts=lambda row, place: place < row.start % 4)
    engine = make_engine(executor, max_num_batched_tokens=9)
    valid: dict[int, tuple[int, int]] = {}
    engine.add_request(request("a", PROMPTS[7], max_tokens=30))
    engine.add_request(request("b", PROMPTS[3], max_tokens=30))
    while engine.has_unfinished():
        seen = len(executor.plans)
        deltas = {delta.request_id: delta for delta in engine.step()}
        for row in executor.plans[seen].rows:
            target, draft = valid.get(row.seq_id, (0, 0))
            assert (row.start, row.num_draft_computed_tokens) == (target, draft)
            delta = deltas.get("ab"[row.seq_id - 1])
            accepted = delta.num_accepted if delta else 0
            n = row.num_committed_tokens
            draft_read = row.draft_start + len(row.draft_chunk) if row.draft_chunk else draft
            drafted_kv = n + row.num_draft_tokens - 1 if row.num_draft_tokens else draft_read
            valid[row.seq_id] = (n + accepted, min(n + accepted, drafted_kv))


def test_p17_block_ending_in_a_rejected_token_is_never_published() -> None:
    """Blocks of one slot, everything rejected: each published block holds the committed token's chain."""
    executor = TaggedExecutor(block_size=1, num_blocks=200, accepts=never)
    engine = make_engine(executor)
    engine.add_request(request("a", [1, 2, 3], max_tokens=10, ignore_eos=True))
    text = tokens(run(engine)["a/0"])
    engine.add_request(request("b", [1, 2, 3, *text], max_tokens=10, ignore_eos=True))
    results = run(engine)["b/0"]  # reading a stale entry raises in the executor
    assert results[-1].num_cached_tokens == 12  # all but the last committed token, which was never read
    assert tokens(results) == reference([1, 2, 3, *text], 10, eos=None)


@pytest.mark.parametrize("accepts", [always, never], ids=["all", "none"])
@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("has_draft", [True, False])
def test_p18_no_draft_and_every_draft_accepted(accepts: object, k: int, has_draft: bool) -> None:
    executor = TaggedExecutor(accepts=accepts, has_draft=has_draft)  # type: ignore[arg-type]
    engine = make_engine(executor, k=k)
    engine.add_request(request("a", [4, 4], max_tokens=23, ignore_eos=True))
    results = run(engine)["a/0"]
    assert tokens(results) == reference([4, 4], 23, eos=None)
    counts = results[-1].speculation
    assert counts is not None
    assert counts.mean_acceptance_length <= k + 1
    if accepts is never:
        assert counts.num_accepted_tokens == 0
    else:
        assert counts.num_accepted_tokens == counts.num_draft_tokens


def test_p19_abort_in_every_state() -> None:
    """Waiting, prefilling, decoding, with answers held back, and twice: nothing leaks, each ends once."""
    for steps_before in range(8):
        executor = TaggedExecutor(num_blocks=20)
        engine = make_engine(executor, max_num_seqs=2, max_num_batched_tokens=4, max_model_len=40)
        engine.add_request(request("victim", list(range(20)), n=3))
        for i in range(3):
            engine.add_request(request(str(i), [i, i + 1], max_tokens=6))
        ends = []
        for _ in range(steps_before):
            ends += [d for d in engine.step() if d.finish_reason]
        engine.abort("victim")
        engine.abort("victim")
        engine.abort("nobody")
        engine.check_integrity()
        ends += [d for deltas in run(engine).values() for d in deltas if d.finish_reason]
        victims = sorted(d.index for d in ends if d.request_id == "victim")
        assert victims == [0, 1, 2]
        assert {d.request_id for d in ends if d.finish_reason is FinishReason.LENGTH} >= {"0", "1", "2"} - {"victim"}
        assert engine.stats().kv_cache_usage == 0.0


def test_p19_abort_while_the_step_is_under_way() -> None:
    """The result of an aborted row is dropped, its neighbours' results are not."""
    executor = TaggedExecutor()
    engine = make_engine(executor)
    engine.add_request(request("a", [1, 2]))
    engine.add_request(request("b", [2, 1]))
    engine.step()
    inner = executor.execute

    def execute(plan):  # type: ignore[no-untyped-def]
        result = inner(plan)
        engine.abort("a")
        executor.execute = inner  # type: ignore[method-assign]
        return result

    executor.execute = execute  # type: ignore[method-assign]
    results = run(engine)
    assert finish(results["a/0"]) is FinishReason.ABORT
    assert "b/0" in results


def test_p19_drafts_pending_at_preemption_are_dropped() -> None:
    """Too few blocks for all: sequences are preempted while drafting, and come back with the right text."""
    executor = TaggedExecutor(num_blocks=12, accepts=lambda row, place: place < 2)
    engine = make_engine(executor, max_model_len=40, max_num_seqs=4)
    for i in range(4):
        engine.add_request(request(str(i), [i, 5, 6], max_tokens=30, ignore_eos=True))
    results = run(engine)
    assert engine.stats().num_preemptions > 0
    for i in range(4):
        assert tokens(results[f"{i}/0"]) == reference([i, 5, 6], 30, eos=None)


def test_p20_an_empty_output_row_does_not_stall() -> None:
    calls = iter(range(1000))
    executor = TaggedExecutor(empty=lambda row: next(calls) % 3 == 1)
    engine = make_engine(executor)
    engine.add_request(request("a", [1, 2, 3], max_tokens=15, ignore_eos=True))
    assert tokens(run(engine)["a/0"]) == reference([1, 2, 3], 15, eos=None)


@pytest.mark.parametrize("k", [1, 5])
class TestP21BudgetsSmallerThanKPlusOne:
    def test_chunk(self, k: int) -> None:
        for budget in range(1, k + 3):
            executor = TaggedExecutor()
            engine = make_engine(executor, k=k, max_num_seqs=1, max_num_batched_tokens=budget)
            engine.add_request(request("a", [1, 2, 3, 4, 5], max_tokens=9, ignore_eos=True))
            assert tokens(run(engine)["a/0"]) == reference([1, 2, 3, 4, 5], 9, eos=None)
            read = [sum(len(r.token_ids) + r.num_draft_tokens for r in plan.rows) for plan in executor.plans]
            assert max(read) <= budget
            drafted = max(r.num_draft_tokens for plan in executor.plans for r in plan.rows)
            # The draft reads the last two committed tokens, which a budget of one never lets it.
            assert drafted == (min(k, budget - 1))

    def test_max_tokens(self, k: int) -> None:
        for max_tokens in range(1, k + 3):
            executor = TaggedExecutor()
            engine = make_engine(executor, k=k)
            engine.add_request(request("a", [1, 2, 3], max_tokens=max_tokens, ignore_eos=True))
            results = run(engine)["a/0"]
            assert tokens(results) == reference([1, 2, 3], max_tokens, eos=None)
            assert finish(results) is FinishReason.LENGTH

    def test_max_model_len(self, k: int) -> None:
        for room in range(1, k + 3):
            executor = TaggedExecutor()
            engine = make_engine(executor, k=k, max_model_len=20)
            prompt = [1] * (20 - room)
            engine.add_request(request("a", prompt, max_tokens=None, ignore_eos=True))
            results = run(engine)["a/0"]
            assert len(tokens(results)) == room
            assert finish(results) is FinishReason.LENGTH

    def test_memory(self, k: int) -> None:
        """The cache holds exactly one sequence of full length: drafts shrink at its end, nothing is lost."""
        executor = TaggedExecutor(num_blocks=6, block_size=4)
        engine = make_engine(executor, k=k, max_model_len=20)
        engine.add_request(request("a", [1, 2, 3], max_tokens=None, ignore_eos=True))
        engine.add_request(request("b", [3, 2, 1], max_tokens=None, ignore_eos=True))
        results = run(engine)
        assert tokens(results["a/0"]) == reference([1, 2, 3], 17, eos=None)
        assert tokens(results["b/0"]) == reference([3, 2, 1], 17, eos=None)


@pytest.mark.parametrize("place", range(8))
@pytest.mark.parametrize("has_draft", [True, False])
def test_p22_eos_at_every_draft_position(place: int, has_draft: bool) -> None:
    prompt = prompt_with_eos_at(place)
    executor = TaggedExecutor(has_draft=has_draft)
    engine = make_engine(executor)
    engine.add_request(request("a", prompt, max_tokens=40))
    results = run(engine)["a/0"]
    text = tokens(results)
    assert text == reference(prompt, 40)
    assert text.index(EOS) == len(text) - 1 == place
    assert finish(results) is FinishReason.STOP
    assert engine.stats().generation_tokens == len(text)
    counts = results[-1].speculation
    assert counts is not None
    # Every token is an accepted draft, or the one token of its step that no draft gave.
    assert len(text) - counts.num_accepted_tokens in (len(results), len(results) - 1)


def test_p22_ignore_eos_and_min_tokens() -> None:
    prompt = prompt_with_eos_at(3)
    engine = make_engine(TaggedExecutor())
    engine.add_request(request("a", prompt, max_tokens=9, ignore_eos=True))
    assert len(tokens(run(engine)["a/0"])) == 9
    # The fake model masks nothing: what is tested is that an EOS among min_tokens does not end the text.
    engine.add_request(request("b", prompt, max_tokens=20, min_tokens=3))
    assert len(tokens(run(engine)["b/0"])) == 4
    engine.add_request(request("c", prompt, max_tokens=20, min_tokens=5))
    assert len(tokens(run(engine)["c/0"])) > 4


def test_p24_max_tokens_1_pays_for_no_draft() -> None:
    executor = TaggedExecutor()
    engine = make_engine(executor)
    engine.add_request(request("a", list(range(30)), max_tokens=1))
    run(engine)
    assert all(not row.draft_chunk and not row.num_draft_tokens for plan in executor.plans for row in plan.rows)
    assert len(executor.plans) == 1


def test_p24_prompts_that_never_draft_still_fill_the_prefix_cache() -> None:
    executor = TaggedExecutor()
    engine = make_engine(executor)
    prompt = list(range(30))
    engine.add_request(request("a", prompt, max_tokens=1))
    run(engine)
    engine.add_request(request("b", prompt, max_tokens=10))
    results = run(engine)["b/0"]
    assert results[-1].num_cached_tokens == 28
    assert tokens(results) == reference(prompt, 10)


@pytest.mark.parametrize("left", range(1, 8))
def test_p24_k_is_clamped_to_what_is_left(left: int) -> None:
    executor = TaggedExecutor(accepts=never)
    engine = make_engine(executor)
    engine.add_request(request("a", [1, 2, 3], max_tokens=left, ignore_eos=True))
    run(engine)
    for plan in executor.plans:
        row = plan.rows[0]
        assert row.num_draft_tokens <= max(left - row.num_output_tokens - 1, 0)


def test_p38_a_request_past_the_drafts_length_goes_on_and_the_others_draft() -> None:
    executor = TaggedExecutor(num_blocks=100)
    engine = make_engine(executor, draft_max_len=16)
    engine.add_request(request("long", list(range(20)), max_tokens=20, ignore_eos=True))
    engine.add_request(request("grows", [1, 2, 3], max_tokens=30, ignore_eos=True))
    engine.add_request(request("short", [7, 8], max_tokens=10, ignore_eos=True))
    results = run(engine)
    assert tokens(results["long/0"]) == reference(list(range(20)), 20, eos=None)
    assert tokens(results["grows/0"]) == reference([1, 2, 3], 30, eos=None)
    assert results["long/0"][-1].speculation.num_drafts == 0  # type: ignore[union-attr]
    assert results["grows/0"][-1].speculation.num_drafts > 0  # type: ignore[union-attr]
    assert results["short/0"][-1].speculation.mean_acceptance_length > 3  # type: ignore[union-attr]
    furthest = max(
        row.draft_start + len(row.draft_chunk) + max(row.num_draft_tokens - 1, 0)
        for plan in executor.plans
        for row in plan.rows
        if row.draft_chunk
    )
    assert furthest <= 16, "the draft was fed past its length"


def test_p38_cached_blocks_past_the_drafts_length_are_hits() -> None:
    engine = make_engine(TaggedExecutor(num_blocks=100), draft_max_len=10)
    for name in "ab":
        engine.add_request(request(name, list(range(30)), max_tokens=3))
        results = run(engine)[f"{name}/0"]
    assert results[-1].num_cached_tokens == 28


def test_failed_row_ends_alone() -> None:
    executor = TaggedExecutor(fail=lambda row: row.seq_id == 2 and row.num_output_tokens > 2)
    engine = make_engine(executor)
    for i in range(3):
        engine.add_request(request(str(i), [i, 9], max_tokens=12, ignore_eos=True))
    results = run(engine)
    assert finish(results["1/0"]) is FinishReason.ERROR
    assert results["1/0"][-1].error == "planted failure"
    for i in (0, 2):
        assert tokens(results[f"{i}/0"]) == reference([i, 9], 12, eos=None)
    assert engine.stats().finished_error == 1


def test_answers_of_one_request_share_the_prompts_blocks() -> None:
    executor = TaggedExecutor(num_blocks=100)
    engine = make_engine(executor)
    prompt = list(range(33))
    engine.add_request(request("a", prompt, n=4, max_tokens=5))
    results = run(engine)
    assert [tokens(results[f"a/{i}"]) for i in range(4)] == [reference(prompt, 5)] * 4
    read = sum(len(row.token_ids) for plan in executor.plans for row in plan.rows)
    assert read < 2 * len(prompt), "the prompt was computed more than once"


def test_impossible_requests_are_refused_at_once() -> None:
    engine = make_engine(TaggedExecutor(), max_model_len=20)
    for prompt, words in (
        ([], "empty"),
        ([1] * 20, "at most 19"),
        ([1, 99], "99, at index 1 of the prompt, is outside"),
    ):
        with pytest.raises(InvalidRequestError, match=words):
            engine.add_request(request("a", prompt))
    with pytest.raises(InvalidRequestError, match="stop_token_ids"):
        engine.add_request(request("a", [1], stop_token_ids=[50]))
    assert not engine.has_unfinished()


def test_a_long_prompt_does_not_stop_the_others() -> None:
    """Chunked prefill: while a prompt of many chunks is read, running sequences emit in every step."""
    executor = TaggedExecutor(num_blocks=200)
    engine = make_engine(executor, max_num_batched_tokens=12, max_model_len=200)
    engine.add_request(request("short", [1, 2], max_tokens=190, ignore_eos=True))
    engine.step()
    engine.add_request(request("long", list(range(49)) * 3, max_tokens=2))
    mixed = 0
    while engine.has_unfinished():
        plans_before = len(executor.plans)
        engine.step()
        rows: list[RowPlan] = executor.plans[plans_before].rows
        if any(row.seq_id == 2 and not row.emits for row in rows):
            mixed += 1
            assert any(row.seq_id == 1 and row.emits for row in rows)
    assert mixed > 10


def test_reference_is_not_constant() -> None:
    assert len({tuple(reference([i], 5)) for i in range(20)}) == 20
    assert next_token(0) == 0


def test_steps_run_ahead_and_the_text_is_the_same() -> None:
    """Two steps under way at once, in almost every step, with every pattern of acceptance; no block is lost."""
    for accepted in range(6):
        executor = TaggedExecutor(ahead=True, accepts=lambda row, place, a=accepted: place < a)  # type: ignore[misc]
        engine = make_engine(executor, k=5)
        for i in range(4):
            engine.add_request(request(str(i), [i, 5, 6], max_tokens=24, ignore_eos=True))
        results = run(engine)
        for i in range(4):
            assert tokens(results[f"{i}/0"]) == reference([i, 5, 6], 24, eos=None)
        steps = engine.stats().num_steps
        assert executor.num_ahead >= steps - 2 > 0
        assert engine.stats().kv_cache_usage == 0.0


def test_running_ahead_gives_way_to_a_newcomer() -> None:
    """A request that arrives while two steps are under way is in the next step that is planned."""
    executor = TaggedExecutor(ahead=True)
    engine = make_engine(executor, k=0)
    engine.add_request(request("a", [1, 2], max_tokens=30, ignore_eos=True))
    engine.step()
    engine.step()
    planned = len(executor.plans)
    engine.add_request(request("b", [2, 1], max_tokens=3, ignore_eos=True))
    engine.step()
    engine.step()
    assert len(executor.plans[planned].rows) == 2
    results = run(engine)
    assert tokens(results["b/0"])[-1] == reference([2, 1], 3, eos=None)[-1]


@pytest.mark.parametrize("has_draft", [True, False])
def test_p32_a_degenerate_draft_rests_and_comes_back_when_it_is_of_use(
    has_draft: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No draft is taken: speculation goes off. Later all would be: a probe finds out, and the draft catches up."""
    monkeypatch.setattr(draft_watch, "REST_STEPS", 40)
    useful = False
    executor = TaggedExecutor(num_blocks=200, has_draft=has_draft, accepts=lambda row, place: useful)
    engine = make_engine(executor)

    def answer(count: int) -> None:
        ids = [[i % 7, i, 3] for i in range(count)]
        for name, prompt in enumerate(ids):
            engine.add_request(request(str(name), prompt, max_tokens=20, ignore_eos=True))
        results = run(engine)
        for name, prompt in enumerate(ids):
            assert tokens(results[f"{name}/0"]) == reference(prompt, 20, eos=None)

    answer(24)
    assert engine.stats().speculation_off
    assert engine.stats().num_speculation_switch_offs == 1
    assert 270 <= engine.stats().speculation.num_drafts < 300, "of about 430 steps of a row"
    useful = True
    answer(24)
    assert not engine.stats().speculation_off
    assert engine.stats().speculation.num_accepted_tokens > 100
