"""The sandbox and the service over it, with a real process: limits, repeated and wrong constraints, ends."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import psutil
import pytest
from structured.byte_tokens import byte_tokenizer, eos_id

from paceline.structured.constraint import Constraint, GrammarError
from paceline.structured.params import single
from paceline.structured.sandbox import Sandbox
from paceline.structured.service import GrammarService
from paceline.structured.store import GrammarStore

SECONDS = 2.0


@pytest.fixture(scope="module")
def parts() -> Iterator[tuple[GrammarStore, Sandbox, GrammarService]]:
    store, sandbox = GrammarStore(byte_tokenizer(), [eos_id()]), Sandbox(SECONDS)
    service = GrammarService(store, sandbox)
    yield store, sandbox, service
    service.close()


def slow() -> Constraint:
    """Optional properties in any number: time goes with the square of their count. Of 4,000 a fast processor makes a
    grammar in less than two seconds."""
    return single("json", {"type": "object", "properties": {f"p{i}": {} for i in range(9900)}}, "guided_json")


def test_a_grammar_is_tried_elsewhere_and_compiled_here_once(
    parts: tuple[GrammarStore, Sandbox, GrammarService],
) -> None:
    store, sandbox, service = parts
    first, second = (service.prepare(single("regex", "a+", param)) for param in ("structured_outputs.regex", "x"))
    assert first.result(120) is second.result(120)
    assert store.find(single("regex", "a+", "y")) is first.result()
    assert service.prepare(single("regex", "a+", "z")).done()
    assert sandbox.pid is not None
    assert sandbox.pid != os.getpid()


def test_wrong_grammars_are_explained_and_remembered(parts: tuple[GrammarStore, Sandbox, GrammarService]) -> None:
    _, _, service = parts
    for kind, source, words in [
        ("regex", "(a", "parenthesis"),
        ("regex", "(?=a)b", "Lookahead"),
        ("regex", "(a)\\1", "reference"),
        ("grammar", "root ::= nothing", "nothing"),
        ("grammar", "root ::= root", "no text"),
        ("json", {"type": "integer", "minimum": 5, "maximum": 3}, "minimum greater"),
        ("json", False, "cannot accept any value"),
        ("json", {"$ref": "#"}, "[Cc]ircular"),
    ]:
        constraint = single(kind, source, "p")
        with pytest.raises(GrammarError, match=words) as caught:
            service.prepare(constraint).result(120)
        assert "/project/" not in str(caught.value)
        assert service.prepare(constraint).done()  # known by now
        assert str(caught.value.as_refusal(constraint)).startswith("p cannot be used: ")


def test_a_sandbox_that_was_killed_is_started_again(parts: tuple[GrammarStore, Sandbox, GrammarService]) -> None:
    _, sandbox, service = parts
    assert sandbox.pid is not None
    psutil.Process(sandbox.pid).kill()
    psutil.Process(sandbox.pid).wait(20)
    assert service.prepare(single("regex", "d+", "p")).result(120) is not None


def test_a_grammar_that_takes_too_long_is_ended(parts: tuple[GrammarStore, Sandbox, GrammarService]) -> None:
    _, sandbox, service = parts
    assert sandbox.pid is not None
    before, started = sandbox.pid, time.monotonic()
    with pytest.raises(GrammarError, match="more than 2 s to compile"):
        service.prepare(slow()).result(120)
    assert time.monotonic() - started < SECONDS + 5
    assert not psutil.pid_exists(before)
    assert service.prepare(slow()).done()  # and is not tried again


def test_a_closed_sandbox_starts_nothing(parts: tuple[GrammarStore, Sandbox, GrammarService]) -> None:
    store, sandbox, service = parts
    service.close()
    with pytest.raises(GrammarError):
        sandbox.check(single("regex", "b", "p"), store.tokenizer_info().serialize_json())
    assert sandbox.pid is None


def test_the_store_forgets_what_nobody_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.structured.store.CACHE_ENTRIES", 2)
    store = GrammarStore(byte_tokenizer(), [eos_id()])
    held = store.get(single("regex", "a", "p"))
    for letter in "bcd":
        store.get(single("regex", letter, "p"))
    assert store.find(single("regex", "b", "p")) is None
    assert store.find(single("regex", "a", "p")) is held
