"""Deltas on their way out of the engine's reports: first tokens first, and one delta for several plain steps."""

from __future__ import annotations

import asyncio
from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from paceline.engine.async_engine import AsyncEngine, merged
from paceline.plan import TokenLogprobs
from paceline.sequence import FinishReason, SequenceDelta


def delta(name: str, *token_ids: int, **fields: object) -> SequenceDelta:
    return SequenceDelta(request_id=name, index=0, token_ids=list(token_ids), text="x" * len(token_ids), **fields)  # type: ignore[arg-type]


@st.composite
def histories(draw: st.DrawFn) -> list[SequenceDelta]:
    """Deltas of some sequences, each ended at most once, with all that a delta may carry."""
    ended: set[str] = set()
    result = []
    for token in range(draw(st.integers(0, 30))):
        name = draw(st.sampled_from("abc"))
        if name in ended:
            continue
        fields: dict[str, object] = {}
        kind = draw(st.sampled_from(["plain", "plain", "plain", "first", "drafted", "logprobs", "end", "failed"]))
        if kind == "first":
            fields["queue_seconds"] = 0.1
        elif kind == "drafted":
            fields |= {"num_drafted": 2, "num_accepted": 1}
        elif kind == "logprobs":
            fields["logprobs"] = [TokenLogprobs(-1.0, 1, [], [])]
        elif kind == "end":
            fields |= {"finish_reason": FinishReason.STOP, "stop_reason": 7}
            ended.add(name)
        elif kind == "failed":
            fields |= {"finish_reason": FinishReason.ERROR, "error": "NaN"}
            ended.add(name)
        result.append(delta(name, token, **fields))
    return result


@given(histories())
def test_merging_loses_nothing_and_keeps_the_order_of_each_sequence(deltas: list[SequenceDelta]) -> None:
    before: dict[str, list[int]] = defaultdict(list)
    for each in deltas:
        before[each.request_id] += each.token_ids
    special = [each.token_ids for each in deltas if each.num_drafted or each.logprobs or each.error]
    ends = [(each.request_id, each.finish_reason, each.stop_reason) for each in deltas if each.finish_reason]
    after: dict[str, list[int]] = defaultdict(list)
    result = merged(deltas)
    for each in result:
        after[each.request_id] += each.token_ids
        assert len(each.text) == len(each.token_ids)
    assert after == before
    assert sorted(ends) == sorted((e.request_id, e.finish_reason, e.stop_reason) for e in result if e.finish_reason)
    alone = [each.token_ids for each in result if each.num_drafted or each.logprobs or each.error]
    assert alone == special  # a token's origin and its log-probability are told by its own step


def test_plain_steps_become_one_and_a_first_token_stays_alone() -> None:
    steps = [delta("a", 1, queue_seconds=0.2), delta("b", 5), delta("a", 2), delta("a", 3), delta("b", 6)]
    steps.append(delta("a", 4, finish_reason=FinishReason.LENGTH))
    found = [(each.request_id, each.token_ids, each.finish_reason) for each in merged(steps)]
    assert found == [("a", [1], None), ("b", [5, 6], None), ("a", [2, 3, 4], FinishReason.LENGTH)]


def test_first_tokens_are_handed_out_and_sent_before_all_others() -> None:
    async def run() -> tuple[list[str], int]:
        engine = object.__new__(AsyncEngine)
        engine._requests = {f"r{n}": asyncio.Queue() for n in range(40)}
        order: list[str] = []

        async def consume(name: str) -> None:
            await engine._requests[name].get()
            order.append(name)

        tasks = [asyncio.create_task(consume(f"r{n}")) for n in range(40)]
        await asyncio.sleep(0)
        steps = [delta(f"r{n}", n) for n in range(39)] + [delta("r39", 39, queue_seconds=0.0)]
        handing = asyncio.create_task(engine._take_in_turns(steps))
        rounds = 0
        while not order:
            await asyncio.sleep(0)
            rounds += 1
        waiting = sum(not queue.empty() for queue in engine._requests.values())
        await asyncio.gather(handing, *tasks)
        return order, waiting

    order, waiting = asyncio.run(run())
    assert order[0] == "r39"
    assert waiting == 0  # nobody else's delta was handed out before it was read
    assert sorted(order) == sorted(f"r{n}" for n in range(40))
