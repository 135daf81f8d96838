"""What may be asked for, in every spelling; what is wrong is named."""

from __future__ import annotations

import json
from typing import Any

import pytest

from paceline import InvalidRequestError, SamplingParams, StructuredOutputsParams
from paceline.structured.constraint import Constraint
from paceline.structured.params import MAX_SOURCE, constraint_of, response_format_constraint, single
from paceline.structured.regex import json_pattern, whole_match

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def test_every_spelling_of_a_schema_is_one_constraint() -> None:
    spellings = [
        SamplingParams(structured_outputs={"json": SCHEMA}).structured_outputs,
        SamplingParams(structured_outputs=StructuredOutputsParams(json=SCHEMA)).structured_outputs,
        SamplingParams(guided_decoding={"json": json.dumps(SCHEMA)}).structured_outputs,
        response_format_constraint({"type": "json_schema", "json_schema": {"strict": True, "schema": SCHEMA}}),
        single("json", SCHEMA, "guided_json"),
    ]
    assert len({constraint.key for constraint in spellings if constraint is not None}) == 1
    assert all(isinstance(constraint, Constraint) for constraint in spellings)


def test_what_asks_for_nothing() -> None:
    assert response_format_constraint({"type": "text"}) is None
    assert response_format_constraint(None) is None
    assert SamplingParams(structured_outputs=None, guided_decoding=None) == SamplingParams()
    quiet = {"regex": "a", "json_object": False, "backend": "auto", "structural_tag": None, "disable_fallback": True}
    assert constraint_of(quiet, "structured_outputs") == single("regex", "a", "structured_outputs.regex")


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"structured_outputs": {}}, "structured_outputs", "exactly one"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs", "regex and choice"),
    ({"structured_outputs": {"jsn": {}}}, "structured_outputs.jsn", "Did you mean 'json'"),
    ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", "not valid JSON"),
    ({"structured_outputs": {"json": '{"minimum": NaN}'}}, "structured_outputs.json", "NaN"),
    ({"structured_outputs": {"json": "[" * 100_000}}, "structured_outputs.json", "not valid JSON"),
    ({"structured_outputs": {"json": {"enum": [{1, 2}]}}}, "structured_outputs.json", "JSON"),
    ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex", "non-empty"),
    ({"structured_outputs": {"regex": "a" * (MAX_SOURCE + 1)}}, "structured_outputs.regex", "characters"),
    ({"structured_outputs": {"regex": "\ud800"}}, "structured_outputs.regex", "Unicode"),
    ({"structured_outputs": {"regex": "a^b"}}, "structured_outputs.regex", "ends of a pattern"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "list of non-empty texts"),
    ({"structured_outputs": {"choice": ["a", 1]}}, "structured_outputs.choice", "list of non-empty texts"),
    ({"structured_outputs": {"grammar": 3}}, "structured_outputs.grammar", "non-empty text"),
    ({"structured_outputs": {"json_object": "yes"}}, "structured_outputs.json_object", "true"),
    ({"structured_outputs": {"regex": "a", "whitespace_pattern": " "}}, "structured_outputs.whitespace_pattern", "not"),
    ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag", "not supported"),
    ({"structured_outputs": {"regex": "a", "disable_any_whitespace": 1}},
     "structured_outputs.disable_any_whitespace", "true or false"),
    ({"structured_outputs": {"regex": "a"}, "guided_decoding": {"regex": "a"}}, "guided_decoding", "older name"),
    ({"structured_outputs": {"regex": "a"}, "ignore_eos": True}, "ignore_eos", "structured output"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "param", "words"), WRONG, ids=[f"{w[1]}-{i}" for i, w in enumerate(WRONG)])
def test_wrong_constraints_are_refused_by_name(arguments: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words) as caught:
        SamplingParams(**arguments)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ({"type": "xml"}, "response_format.type"),
        ("json", "response_format.type"),
        ({"type": "json_schema"}, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": {"name": "x"}}, "response_format.json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"schema": {}, "stric": True}}, "response_format.json_schema.stric"),
        ({"type": "json_schema", "json_schema": {"schema": {}, "strict": "yes"}}, "response_format.json_schema.strict"),
        ({"type": "json_object", "json_schema": {}}, "response_format.json_schema"),
    ],
)
def test_wrong_response_formats_are_refused_by_name(value: Any, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        response_format_constraint(value)
    assert caught.value.param == param


def test_patterns_of_a_schema_match_anywhere_and_regexes_from_end_to_end() -> None:
    assert json_pattern("b", "p") == "^.*(b).*$"
    assert json_pattern("^(a|b)", "p") == "^((a|b)).*$"
    assert json_pattern("[$^]x\\$", "p") == "^.*([$^]x\\$).*$"
    assert whole_match("^a[|]b$", "p") == "a[|]b"
    for pattern in ("^a|b", "a|b$", "a$b", "[[:alpha:]]", "\\Aa", "a\\Z"):
        with pytest.raises(InvalidRequestError):
            whole_match(pattern, "p")
