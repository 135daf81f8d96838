"""Requests whose grammar takes a while: nobody waits for them, and a wrong one is refused before it is queued."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
from engine.tagged import TaggedExecutor, make_engine, reference, request, run

from paceline.engine.engine import Engine
from paceline.engine.grammar_queue import GrammarQueue
from paceline.errors import InvalidRequestError
from paceline.sequence import FinishReason, SequenceDelta
from paceline.structured.constraint import Constraint, GrammarError, decode_grammar

PROMPT = [3, 4, 5]


class SlowCompiler:
    """Gives futures that the test settles."""

    def __init__(self) -> None:
        self.futures: list[Future[object]] = []
        self.closed = False

    def prepare(self, constraint: Constraint) -> Future[object]:
        self.futures.append(Future())
        return self.futures[-1]

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def compiler() -> SlowCompiler:
    return SlowCompiler()


@pytest.fixture
def engine(compiler: SlowCompiler) -> Engine:
    engine = make_engine(TaggedExecutor())
    engine._grammars = GrammarQueue(compiler)
    return engine


def constrained(request_id: str, **params: object) -> object:
    return request(request_id, PROMPT, structured_outputs={"regex": "a+"}, **params)


def finals(deltas: list[SequenceDelta]) -> list[SequenceDelta]:
    return [delta for delta in deltas if delta.finish_reason is not None]


def test_others_go_on_while_a_grammar_is_compiled(engine: Engine, compiler: SlowCompiler) -> None:
    engine.add_request(constrained("late"))  # type: ignore[arg-type]
    engine.add_request(request("free", PROMPT))
    for _ in range(50):
        if any(delta.finish_reason for delta in engine.step()):
            break
    else:
        raise AssertionError("the free request did not finish")
    assert engine.has_unfinished()
    assert engine.stats().num_waiting == 1
    assert engine.step() == []
    compiled = object()
    compiler.futures[0].set_result(compiled)
    engine.step()
    (sequence,) = engine._scheduler.running
    assert sequence.grammar is compiled
    assert sequence.sampling.grammar is not None
    assert decode_grammar(sequence.sampling.grammar).end_token_ids == engine.config.model.eos_token_ids
    run(engine)
    assert sequence.token_ids[len(PROMPT) :] == reference(PROMPT, 12)


def test_a_grammar_that_does_not_compile_refuses_every_answer_of_its_request(
    engine: Engine, compiler: SlowCompiler
) -> None:
    engine.add_request(constrained("wrong", n=3))  # type: ignore[arg-type]
    compiler.futures[0].set_exception(GrammarError("the parenthesis is not closed."))
    deltas = finals(engine.step())
    assert [delta.index for delta in deltas] == [0, 1, 2]
    for delta in deltas:
        assert delta.finish_reason is FinishReason.ERROR
        assert delta.refusal is not None
        assert delta.refusal.param == "structured_outputs.regex"
        assert "parenthesis" in str(delta.error)
        assert "structured_outputs.regex" in str(delta.error)
    assert not engine.has_unfinished()
    assert engine.stats().prompt_tokens == 0


def test_p19_an_abort_while_compiling_ends_the_request(engine: Engine, compiler: SlowCompiler) -> None:
    engine.add_request(constrained("gone", n=2))  # type: ignore[arg-type]
    engine.abort("gone")
    assert [delta.finish_reason for delta in engine.step()] == [FinishReason.ABORT] * 2
    assert not engine.has_unfinished()
    compiler.futures[0].set_result(object())
    assert engine.step() == []
    assert not engine._scheduler.has_unfinished()


def test_known_errors_are_raised_at_once(engine: Engine, compiler: SlowCompiler) -> None:
    failed: Future[object] = Future()
    failed.set_exception(GrammarError("no."))
    compiler.prepare = lambda constraint: failed  # type: ignore[method-assign]
    with pytest.raises(InvalidRequestError, match="structured_outputs"):
        engine.add_request(constrained("known"))  # type: ignore[arg-type]
    assert not engine.has_unfinished()


def test_without_a_tokenizer_there_is_no_structured_output() -> None:
    with pytest.raises(InvalidRequestError, match="tokenizer") as caught:
        make_engine(TaggedExecutor()).add_request(constrained("x"))  # type: ignore[arg-type]
    assert caught.value.param == "structured_outputs.regex"


def test_the_compiler_is_closed_with_the_engine(engine: Engine, compiler: SlowCompiler) -> None:
    engine.shutdown()
    assert compiler.closed
