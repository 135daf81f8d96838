"""The languages of tool calls, as xgrammar compiles them: what each one takes, and what it does not."""

from __future__ import annotations

from typing import Any

import pytest
from unit.hub_fakes import SPECIAL, byte_level_tokens

from paceline.errors import InvalidRequestError
from paceline.server.tools.formats import HERMES, LLAMA3_JSON, MISTRAL, ToolFormat
from paceline.structured.constraint import Constraint
from paceline.structured.params import single
from paceline.structured.store import compile_constraint, make_compiler
from paceline.structured.tool_calls import Function, calls_in_text, calls_or_answer, only_calls

F = Function("f", {"properties": {"a": {"type": "integer"}}, "required": ["a"]}, True, "tools[0].function.parameters")
G = Function("g", None, False, "tools[1].function.parameters")


@pytest.fixture(scope="module")
def compiler() -> Any:
    import xgrammar

    tokens = byte_level_tokens()[: len(SPECIAL) + 256]
    return make_compiler(xgrammar.TokenizerInfo(tokens, vocab_type=xgrammar.VocabType.BYTE_LEVEL, stop_token_ids=[2]))


def takes(compiler: Any, constraint: Constraint, text: str) -> bool:
    import xgrammar

    matcher = xgrammar.GrammarMatcher(compile_constraint(compiler, constraint))
    return bool(matcher.accept_string(text)) and bool(matcher.is_completed())


def call(form: ToolFormat, name: str, arguments: str) -> str:
    return f'{form.shape.open}"{name}"{form.shape.between}{arguments}{form.shape.close}'


@pytest.mark.parametrize("form", [HERMES, LLAMA3_JSON, MISTRAL], ids=lambda form: form.name)
def test_only_calls(compiler: Any, form: ToolFormat) -> None:
    one, other = call(form, "f", '{"a": 1}'), call(form, "g", "{}")

    def whole(*calls: str) -> str:
        return form.shape.head + form.shape.separator.join(calls) + form.shape.tail

    several = only_calls(form.shape, [F, G], parallel=True, param="tools")
    for text in (whole(one), whole(one, other), whole(other, other, one)):
        assert takes(compiler, several, text)
    for text in ("", "hi", whole(call(form, "f", '{"a": "x"}')), whole(call(form, "h", "{}")), "x" + whole(one)):
        assert not takes(compiler, several, text)
    single_call = only_calls(form.shape, [F, G], parallel=False, param="tools")
    assert takes(compiler, single_call, whole(one))
    assert not takes(compiler, single_call, whole(one, one))


@pytest.mark.parametrize("form", [HERMES, LLAMA3_JSON], ids=lambda form: form.name)
def test_calls_in_text(compiler: Any, form: ToolFormat) -> None:
    constraint = calls_in_text(form.shape, [F], parallel=True, param="tools")
    assert takes(compiler, constraint, call(form, "f", '{"a": 1}'))
    assert takes(compiler, constraint, "Rome,\tthen {Oslo}")
    assert not takes(compiler, constraint, call(form, "f", '{"a": "1"}'))
    assert not takes(compiler, constraint, call(form, "h", "{}"))


@pytest.mark.parametrize(
    ("answer", "good", "bad"),
    [
        (single("json", {"type": "object", "properties": {"z": {"type": "null"}}}, "x"), '{"z": null}', '{"z": 1}'),
        (single("choice", ["yes", "no"], "x"), "no", "maybe"),
        (single("regex", "a+", "x"), "aaa", "b"),
        (single("grammar", 'root ::= "a" | "b"', "x"), "b", "c"),
    ],
)
def test_calls_or_an_answer(compiler: Any, answer: Constraint, good: str, bad: str) -> None:
    constraint = calls_or_answer(HERMES.shape, [F], answer, parallel=True)
    assert takes(compiler, constraint, good)
    assert takes(compiler, constraint, call(HERMES, "f", '{"a": 1}'))
    assert not takes(compiler, constraint, bad)


def test_what_cannot_be_enforced_is_refused_for_strict_functions_only() -> None:
    for parameters in ({"type": "object", "not": {}}, {"type": "array"}):
        with pytest.raises(InvalidRequestError):
            only_calls(HERMES.shape, [Function("f", parameters, True, "p")], parallel=True, param="tools")
    loose = Function("f", {"type": "object", "not": {}}, False, "p")
    assert "additionalProperties" in only_calls(HERMES.shape, [loose], parallel=True, param="tools").source
    big = Function("f", {"type": "object", "properties": {"a": {"enum": ["x" * 140_000]}}}, False, "p")
    with pytest.raises(InvalidRequestError, match="characters together"):
        only_calls(HERMES.shape, [big], parallel=True, param="tools")
