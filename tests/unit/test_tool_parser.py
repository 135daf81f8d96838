"""Tool calls read from text: every cut of a text gives the same pieces; what is no call is content."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.server.tools.formats import FORMATS, HERMES, LLAMA3_JSON, MISTRAL, ToolFormat
from paceline.server.tools.parser import Arguments, CallBegins, Content, Piece, ToolParser

NAMES = ("f", "get_weather")
Calls = list[tuple[str, str]]


def read(form: ToolFormat, chunks: list[str], **options: Any) -> tuple[str, Calls]:
    parser = ToolParser(form, NAMES, **options)
    pieces = [piece for chunk in chunks for piece in parser.feed(chunk)] + parser.finish()
    return collected(pieces)


def collected(pieces: list[Piece]) -> tuple[str, Calls]:
    content, calls = "", []
    for piece in pieces:
        match piece:
            case Content(text):
                content += text
            case CallBegins(index, name):
                assert index == len(calls)
                calls.append((name, ""))
            case Arguments(index, text):
                assert index == len(calls) - 1
                calls[-1] = (calls[-1][0], calls[-1][1] + text)
    return content, calls


def call(name: str, arguments: str, key: str = "arguments") -> str:
    return f'{{"name": "{name}", "{key}": {arguments}}}'


ONE = call("f", '{"a": 1}')
TAGGED = f"<tool_call>\n{ONE}\n</tool_call>"
LLAMA = call("f", '{"a": "}"}', "parameters")
TRICKY = r'{"a": "\"}{", "b": {"c": [1, {"d": "<tool_call>"}]}}'


@pytest.mark.parametrize(
    ("form", "text", "content", "calls"),
    [
        (HERMES, "no call", "no call", []),
        (HERMES, "\n\n a < b \n", "\n\n a < b \n", []),
        (HERMES, TAGGED, "", [("f", '{"a": 1}')]),
        (HERMES, f"Let me see.\n{TAGGED}\n{TAGGED}\n", "Let me see.", [("f", '{"a": 1}')] * 2),
        (HERMES, f"<tool_call>{call('f', TRICKY)}</tool_call> done", " done", [("f", TRICKY)]),
        (HERMES, '<tool_call>{"arguments": {"x": 2}, "name": "g"}</tool_call>', "", [("g", '{"x": 2}')]),
        (HERMES, r'<tool_call>{"name": "f", "arguments": "{\"a\": 1}"}</tool_call>', "", [("f", '{"a": 1}')]),
        (HERMES, '<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
        (HERMES, f"<tool_call>\n{ONE}", "", [("f", '{"a": 1}')]),
        (HERMES, f"<tool_call>\n{ONE}\n{TAGGED}", "", [("f", '{"a": 1}')] * 2),
        (HERMES, '<tool_call>\n{"name": "f", "arguments": {"a', "", [("f", '{"a')]),
        (HERMES, '<tool_call>\n{"nam', '<tool_call>\n{"nam', []),
        (HERMES, "<tool_call>", "<tool_call>", []),
        (HERMES, "<tool_call> what", "<tool_call> what", []),
        (HERMES, '<tool_call>{"x": 1}</tool_call>', '<tool_call>{"x": 1}</tool_call>', []),
        (HERMES, "a <tool_cal", "a <tool_cal", []),
        (LLAMA3_JSON, LLAMA, "", [("f", '{"a": "}"}')]),
        (LLAMA3_JSON, f"\n{LLAMA}; {LLAMA}", "", [("f", '{"a": "}"}')] * 2),
        (LLAMA3_JSON, f"I say {LLAMA}", f"I say {LLAMA}", []),
        (LLAMA3_JSON, '{"name": "unknown", "parameters": {}}', '{"name": "unknown", "parameters": {}}', []),
        (LLAMA3_JSON, '{"answer": [1, 2]}', '{"answer": [1, 2]}', []),
        (LLAMA3_JSON, "  ", "  ", []),
        (MISTRAL, f"[TOOL_CALLS] [{ONE}, {ONE}]", "", [("f", '{"a": 1}')] * 2),
        (MISTRAL, f"Well.[TOOL_CALLS][{ONE}]</s>", "Well.", [("f", '{"a": 1}')]),
        (MISTRAL, "Hello</s>", "Hello", []),
        (MISTRAL, "[TOOL", "[TOOL", []),
    ],
)
def test_every_cut_gives_the_same(form: ToolFormat, text: str, content: str, calls: Calls) -> None:
    hidden = ("</s>",) if form is MISTRAL else ()
    assert read(form, [text], hidden=hidden) == (content, calls)
    assert read(form, list(text), hidden=hidden) == (content, calls)
    for cut in range(len(text)):
        assert read(form, [text[:cut], text[cut:]], hidden=hidden) == (content, calls)


def test_the_opening_may_be_in_the_prompt() -> None:
    assert read(MISTRAL, [f"[{ONE}]"], begun=True) == ("", [("f", '{"a": 1}')])


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_forced_calls_that_are_cut_anywhere_leave_no_content(name: str) -> None:
    form = FORMATS[name]
    shape = form.shape
    one = shape.open + '"f"' + shape.between + '{"a": 1}' + shape.close
    whole = shape.head + one + shape.separator + one + shape.tail
    for cut in range(len(whole) + 1):
        content, calls = read(form, [whole[:cut]], forced=True, begun=bool(form.opening))
        assert content == ""
        assert all('{"a": 1}'.startswith(arguments) for _, arguments in calls)
    assert len(calls) == 2


def test_without_parallel_calls_the_first_one_counts() -> None:
    for form, text in ((HERMES, f"{TAGGED}\n{TAGGED}"), (MISTRAL, f"[TOOL_CALLS][{ONE}, {ONE}]")):
        assert read(form, [text], parallel=False) == ("", [("f", '{"a": 1}')])


def test_arguments_stream_before_the_call_is_complete() -> None:
    parser = ToolParser(HERMES, NAMES)
    assert parser.feed('<tool_call>\n{"name": "f", "arg') == []
    assert parser.feed('uments": {"a": [1,') == [CallBegins(0, "f"), Arguments(0, '{"a": [1,')]
    assert parser.feed(" 2]}") == [Arguments(0, " 2]}")]
    assert parser.feed("}\n</tool_call>") == []


@given(
    values=st.lists(st.dictionaries(st.text(max_size=4), st.text(max_size=8) | st.integers(), max_size=3), max_size=3),
    text=st.text(alphabet="ab <tol_cTOL[]", max_size=12),
    cuts=st.sets(st.integers(0, 300)),
    name=st.sampled_from(sorted(FORMATS)),
)
def test_what_was_written_is_what_is_read(values: list[dict[str, Any]], text: str, cuts: set[int], name: str) -> None:
    form = FORMATS[name]
    shape = form.shape
    written = [shape.open + '"f"' + shape.between + json.dumps(value) + shape.close for value in values]
    before = "" if name == "llama3_json" else text
    whole = before + (form.opening + shape.head + shape.separator.join(written) + shape.tail if written else "")
    places = [0, *sorted(cut for cut in cuts if cut < len(whole)), len(whole)]
    chunks = [whole[a:b] for a, b in pairwise(places)]
    content, calls = read(form, chunks)
    assert content == (before.rstrip() if written else before)
    assert [json.loads(arguments) for _, arguments in calls] == values


@given(text=st.text(alphabet='{}[]",:\\ \nname<tool_call>/', max_size=60), name=st.sampled_from(sorted(FORMATS)))
def test_any_text_can_be_read(text: str, name: str) -> None:
    whole = read(FORMATS[name], [text])
    assert whole == read(FORMATS[name], list(text))
