"""Deltas on their way out of the engine's reports: first tokens first, and one delta for several plain steps."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import defaultdict

import msgspec
import pytest
import zmq
import zmq.asyncio
from hypothesis import given
from hypothesis import strategies as st
from server_fakes import FakeEngine, fake_config

from paceline.config import EngineConfig
from paceline.engine.async_engine import AsyncEngine
from paceline.engine.delta_turns import merged, turns
from paceline.engine.report_reader import ReportReader
from paceline.engine.statistics import EngineStats
from paceline.engine.wire import Deltas, Report, Status, encode
from paceline.plan import TokenLogprobs
from paceline.sampling_params import SamplingParams
from paceline.sequence import EngineRequest, FinishReason, SequenceDelta


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


def test_requests_that_ask_for_steps_get_them() -> None:
    steps = [delta("a", 1), delta("b", 5), delta("a", 2), delta("b", 6)]
    found = [(each.request_id, each.token_ids) for each in merged(steps, {"a"})]
    assert found == [("a", [1]), ("b", [5, 6]), ("a", [2])]


def test_first_tokens_are_handed_out_before_all_others_and_the_rest_in_turns() -> None:
    deltas = [delta(f"r{n}", n) for n in range(39)] + [delta("r39", 39, queue_seconds=0.0)]
    sizes, order = [], []
    for turn in turns(deltas):
        assert isinstance(turn, Deltas)
        sizes.append(len(turn.deltas))
        order += [each.request_id for each in turn.deltas]
    assert order == ["r39", *(f"r{n}" for n in range(39))]
    assert sizes[0] == 1
    assert max(sizes) <= 16
    assert turns([]) == []


def test_a_reader_hands_out_all_in_order_also_what_comes_after_its_end() -> None:
    async def run() -> tuple[list[Report], list[Report]]:
        context = zmq.asyncio.Context()
        source, sink = context.socket(zmq.PUSH), context.socket(zmq.PULL)
        sink.bind("inproc://reports")
        source.connect("inproc://reports")
        taken: list[Report] = []
        arrived: list[Report] = []
        reader = ReportReader(sink, taken.append, arrived.append, apart=())
        sent = [Deltas([delta("a", 1)]), Status(EngineStats(), 0), Deltas([delta("a", 2)]), Deltas([delta("a", 3)])]
        for report in sent[:2]:
            await source.send(encode(report))
        reading = asyncio.create_task(reader.run())
        async with asyncio.timeout(5):
            while len(taken) < 2:
                await asyncio.sleep(0)
        for report in sent[2:]:
            await source.send(encode(report))
        reading.cancel()  # before it has looked at them
        await asyncio.gather(reading, return_exceptions=True)
        await reader.drain(lambda: False)
        await source.send(b"what nobody understands")
        with pytest.raises(msgspec.MsgspecError):
            await reader.run()
        context.destroy(linger=0)
        return taken, arrived

    taken, arrived = asyncio.run(run())
    assert len(arrived) == 4
    tokens = [token for report in taken if isinstance(report, Deltas) for d in report.deltas for token in d.token_ids]
    assert tokens == [1, 2, 3]
    assert isinstance(taken[1], Status)


def make_failing(config: EngineConfig) -> FakeEngine:
    """For the engine process: it fails in its fortieth step, with what it has said still on its way."""

    class Failing(FakeEngine):
        num_steps = 0

        def step(self) -> list[SequenceDelta]:
            self.num_steps += 1
            if self.num_steps == 40:
                raise RuntimeError("the last words of the engine")
            deltas = super().step()
            for each in deltas:
                each.num_drafted = each.num_accepted = 0
            return deltas

    return Failing(config)


def test_an_engine_that_dies_leaves_no_hole_in_a_stream_whose_reader_is_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was read when the process ended is handed out before what was not, and before the error."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))

    async def read(engine: AsyncEngine, number: int) -> tuple[list[int], str]:
        params = SamplingParams(max_tokens=60 if number % 2 else 2000)
        request = EngineRequest(request_id=f"r{number}", prompt_token_ids=[4, 5], sampling_params=params)
        token_ids: list[int] = []
        try:
            async for each in engine.generate(request):
                token_ids += each.token_ids
                time.sleep(0.0003)  # a slow reader: the engine gets ahead
        except Exception as error:
            return token_ids, str(error)
        return token_ids, ""

    async def run() -> list[tuple[list[int], str]]:
        engine = await AsyncEngine.start(fake_config(), factory="test_async_engine_backlog:make_failing")
        try:
            return await asyncio.gather(*(read(engine, number) for number in range(120)))
        finally:
            await engine.shutdown()

    found = asyncio.run(run())
    longest = max((token_ids for token_ids, _ in found), key=len)
    assert len(longest) > 60
    for token_ids, error in found:
        assert token_ids == longest[: len(token_ids)]  # no hole
        assert "last words" in error or len(token_ids) == 60
    assert any(error for _, error in found)
