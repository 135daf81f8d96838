"""Priorities: who waits is let in by priority and then by arrival; a preempted sequence keeps its place in it."""

from __future__ import annotations

from engine.tagged import TaggedExecutor, make_engine, reference, request, run, tokens

from paceline.sequence import EngineRequest


def with_priority(made: EngineRequest, priority: int) -> EngineRequest:
    made.priority = priority
    return made


def test_the_waiting_queue_is_ordered_by_priority_then_arrival() -> None:
    engine = make_engine(TaggedExecutor(), max_num_seqs=1)
    names = {"a": 0, "b": 5, "c": 0, "d": -1, "e": 5, "f": -1}
    for name, priority in names.items():
        engine.add_request(with_priority(request(name, [3, 1, 4], max_tokens=3, ignore_eos=True), priority))
    finished = []
    while engine.has_unfinished():
        finished += [delta.request_id for delta in engine.step() if delta.finish_reason]
    assert finished == ["d", "f", "a", "c", "b", "e"]


def test_p19_preemption_keeps_the_order_and_the_texts() -> None:
    executor = TaggedExecutor(num_blocks=14)
    engine = make_engine(executor)
    prompts = {str(i): [i, 2, 3, 4, 5] for i in range(6)}
    for name, prompt in prompts.items():
        engine.add_request(with_priority(request(name, prompt, max_tokens=24, ignore_eos=True), -int(name) % 3))
    results = run(engine)
    assert engine.stats().num_preemptions > 0
    for name, prompt in prompts.items():
        assert tokens(results[f"{name}/0"]) == reference(prompt, 24, eos=None)
