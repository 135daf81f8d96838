"""Whatever a schema's grammar allows is a document that the schema allows: random walks, judged by jsonschema."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import jsonschema
import pytest
import xgrammar as xgr
from hypothesis import given, settings
from hypothesis import strategies as st
from structured.byte_tokens import byte_tokenizer, eos_id
from structured.walks import make_masks, random_answer
from xgrammar.testing import _is_grammar_accept_string

from paceline.errors import InvalidRequestError
from paceline.structured import json_schema
from paceline.structured.constraint import GrammarError
from paceline.structured.params import single
from paceline.structured.store import GrammarStore

STORE = GrammarStore(byte_tokenizer(), [eos_id()])

NAMED = {"$defs": {"n": {"type": "integer", "minimum": 1}}}

# Counts without a word on what is counted: it may be anything.
COUNTS_ALONE: list[Any] = [
    {"type": "array", "minItems": 1},
    {"type": "array", "maxItems": 2},
    {"type": "array", "minItems": 2, "maxItems": 2},
    {"minItems": 1},
    {"type": ["array", "null"], "minItems": 1},
    {"type": "array", "prefixItems": [{"type": "null"}], "minItems": 2},
    {"type": "object", "minProperties": 1},
    {"type": "object", "maxProperties": 2},
    {"type": "object", "properties": {}, "minProperties": 1, "maxProperties": 1},
    {"maxProperties": 1},
]

SCHEMAS: dict[str, Any] = {
    "object": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "string"}, "c": {"type": "boolean"}},
        "required": ["b"],
    },
    "nested": {
        "type": "object",
        "properties": {"x": {"type": "object", "properties": {"y": {"type": "null"}}, "required": ["y"]}},
        "required": ["x"],
    },
    "required but not listed": {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["z"]},
    "required, of the others' schema": {
        "type": "object",
        "properties": {"a": {"type": "null"}},
        "required": ["z", "a"],
        "additionalProperties": {"type": "integer"},
    },
    "free names": {"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 3},
    "count": {"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "minProperties": 2, "maxProperties": 2},
    "one pattern of names": {"type": "object", "patternProperties": {"^x": {"type": "integer"}}},
    "names": {"type": "object", "propertyNames": {"maxLength": 2}},
    "no type, object": {"properties": {"a": {"type": "integer"}}, "required": ["a"]},
    "no type, number": {"minimum": 3},
    "no type, string": {"minLength": 2},
    "array": {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3},
    "tuple": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "unevaluatedItems": False},
    "tuple and more": {"type": "array", "prefixItems": [{"type": "null"}], "items": {"type": "boolean"}, "minItems": 2},
    "pattern": {"type": "string", "pattern": "^[a-c]{2,4}$"},
    "pattern anywhere": {"type": "string", "pattern": "[a-m]"},
    "pattern at the start": {"type": "string", "pattern": "^ab"},
    "pattern with a class of everything": {"type": "string", "pattern": "^[^a]+$"},
    "pattern with a quote in a class": {"type": "string", "pattern": '^[!-~"]{1,4}$'},
    "length": {"type": "string", "minLength": 2, "maxLength": 4},
    "integer range": {"type": "integer", "minimum": -3, "exclusiveMaximum": 120},
    "number range": {"type": "number", "exclusiveMinimum": 0, "maximum": 2.5},
    "multiple": {"type": "integer", "multipleOf": 7},
    "enum": {"enum": ["a\"b", 1, None, True, {"k": [1, 2]}]},
    "enum of a type": {"type": "integer", "enum": [1, "1", 2]},
    "const": {"const": {"k": "v"}},
    "types": {"type": ["integer", "string"], "minimum": 5, "minLength": 2},
    "anyOf": {"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 2}]},
    "oneOf by type": {"oneOf": [{"type": "integer"}, {"type": "string", "maxLength": 2}]},
    "oneOf by a name": {
        "oneOf": [
            {"type": "object", "properties": {"k": {"const": "a"}, "v": {"type": "null"}}, "required": ["k"]},
            {"type": "object", "properties": {"k": {"enum": ["b", "c"]}}, "required": ["k"]},
        ]
    },
    "allOf of one": {"allOf": [{"$ref": "#/$defs/n"}], "description": "as pydantic writes it", **NAMED},
    "reference": {"type": "array", "items": {"$ref": "#/$defs/n"}, "maxItems": 2, **NAMED},
    "recursive": {"type": "object", "properties": {"v": {"type": "null"}, "next": {"$ref": "#"}}, "required": ["v"]},
    "annotations": {"type": "string", "title": "t", "default": "d", "x-any": 1, "examples": ["e"], "maxLength": 2},
    "says nothing about its type": {"type": "integer", "minLength": 3},
    "anything": True,
    **{f"count alone {number}": schema for number, schema in enumerate(COUNTS_ALONE)},
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEMAS)
def test_p30_every_document_that_the_grammar_allows_is_valid(name: str) -> None:
    constraint, masks = single("json", SCHEMAS[name], "json"), make_masks()
    answers = [random_answer(constraint, masks, seed) for seed in range(12)]
    documents = [answer for answer in answers if answer is not None]
    assert len(documents) >= 6
    for document in documents:
        jsonschema.validate(json.loads(document), SCHEMAS[name], jsonschema.Draft202012Validator)


@pytest.mark.parametrize("schema", COUNTS_ALONE, ids=json.dumps)
def test_what_a_count_alone_allows_can_be_written(schema: Any) -> None:
    documents = ["[null]", '[null, "a"]', "[null, [2]]", "[{}, 1]", '{"a": 1}', '{"a": [], "b": "c"}', "null"]
    grammar = xgr.Grammar.from_json_schema(json.dumps(json_schema.enforceable(schema, "json")))
    kinds = ("[", "{") if "type" not in schema else ("[", "n") if "array" in schema["type"] else ("{",)
    kinds = ("[",) if schema == {"minItems": 1} else ("{",) if schema == {"maxProperties": 1} else kinds
    judge = jsonschema.Draft202012Validator(schema)
    written = [document for document in documents if document[0] in kinds and judge.is_valid(json.loads(document))]
    assert written
    for document in written:
        assert _is_grammar_accept_string(grammar, document), document


REFUSED: dict[str, tuple[Any, str]] = {
    "uniqueItems": ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    "not": ({"not": {"type": "integer"}}, "'not'"),
    "if": ({"if": {"type": "integer"}, "then": {"minimum": 3}}, "'if'"),
    "contains": ({"type": "array", "contains": {}}, "contains"),
    "dependentRequired": ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
    "typing error": ({"type": "object", "propertees": {}}, "Did you mean 'properties'"),
    "nullable": ({"type": "string", "nullable": True}, '"null"'),
    "range beside a multiple": ({"type": "integer", "multipleOf": 7, "minimum": 3}, "multipleOf"),
    "multiple of a float": ({"type": "number", "multipleOf": 0.5}, "multipleOf"),
    "length beside a pattern": ({"type": "string", "pattern": "^a+$", "minLength": 3}, "one at a time"),
    "format unknown": ({"type": "string", "format": "isbn"}, "isbn"),
    "sibling of a reference": ({"$ref": "#/$defs/n", "minimum": 4, **NAMED}, "beside '\\$ref'"),
    "sibling of anyOf": ({"anyOf": [{"type": "string"}], "minLength": 2}, "beside 'anyOf'"),
    "allOf": ({"allOf": [{"type": "object"}, {"type": "object"}]}, "allOf"),
    "oneOf that overlaps": ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, "oneOf"),
    "no such reference": ({"$ref": "#/$defs/nothing"}, "not there"),
    "foreign reference": ({"$ref": "http://example.com/x"}, "path in this schema"),
    "required and forbidden": (
        {"type": "object", "properties": {"a": {}}, "required": ["z"], "additionalProperties": False}, "'z' is required"
    ),
    "names beside properties": ({"propertyNames": {"pattern": "^a"}, "properties": {"b": {}}}, "propertyNames"),
    "pattern of names beside properties": (
        {"type": "object", "properties": {"a": {}}, "patternProperties": {"^x": {"type": "integer"}}}, "patternProp"
    ),
    "oneOf of schemas that lead to themselves": (
        {"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "$defs": {
            "a": {"type": "object", "properties": {"k": {"$ref": "#/$defs/a"}}, "required": ["k"]},
            "b": {"type": "object", "properties": {"k": {"$ref": "#/$defs/b"}}, "required": ["k"]},
        }}, "oneOf"
    ),
    "a reference to itself in oneOf": ({"oneOf": [{"$ref": "#"}, {"$ref": "#"}]}, "oneOf"),
    "nonsense behind a reference": (
        {"oneOf": [{"$ref": "#/$defs/a"}, {"type": "null"}], "$defs": {"a": {"type": [{}], "required": 5}}}, "oneOf"
    ),
    "too many in oneOf": ({"oneOf": [{"const": number} for number in range(100)]}, "at most 64"),
    "enums too long to compare": ({"oneOf": [{"enum": list(range(200))}, {"enum": list(range(200, 400))}]}, "oneOf"),
    "draft-4 tuple": ({"type": "array", "items": [{"type": "integer"}]}, "prefixItems"),
    "keywords of two types": ({"minLength": 2, "minimum": 1}, "give a 'type'"),
    "no value of the type": ({"type": "string", "enum": [1]}, "no value"),
    "no such type": ({"type": "objekt"}, "'type' must be"),
    "quote in a pattern": ({"type": "string", "pattern": '^"$'}, "quotes"),
    "backslash in a pattern": ({"type": "string", "pattern": "^\\\\$"}, "quotes"),
    "escape in a pattern": ({"type": "string", "pattern": "^\\x22$"}, "x22|\\\\\\\\x"),
    "not a schema": (3, "must be a JSON schema"),
    "not a schema inside": ({"type": "object", "properties": {"a": 3}}, r"\$\.properties\.a"),
    "too deep": (lambda: _deep(80), "nested"),
}  # fmt: skip


def _deep(levels: int) -> Any:
    return {"type": "array", "items": _deep(levels - 1)} if levels else {}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_ignored_is_refused_with_its_name(name: str) -> None:
    schema, words = REFUSED[name]
    with pytest.raises(InvalidRequestError, match=words) as caught:
        single("json", schema() if callable(schema) else schema, "response_format.json_schema.schema")
    assert caught.value.param == "response_format.json_schema.schema"


NAMES = st.sampled_from([*json_schema._KNOWN, *json_schema._REFUSED, "#", "x-y", "odd"])
VALUES = st.sampled_from([None, True, 0, -1, 2, 1.5, "", "a", "string", "object", "^a$", "#", "#/$defs/a", "date"])
NONSENSE = st.recursive(
    VALUES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4), max_leaves=20
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(NONSENSE)
def test_p44_any_nonsense_is_refused_with_words_or_compiles(schema: Any) -> None:
    with contextlib.suppress(InvalidRequestError, GrammarError):  # and nothing else
        STORE.get(single("json", schema, "json"))
