"""Constraint of an answer that calls functions: how calls are written, as a structural tag of xgrammar.

A model writes a call as `open NAME between ARGUMENTS close`, as it was trained to; ARGUMENTS follow the function's
JSON schema. Three languages are made of that: calls and nothing else; calls or an answer of another constraint;
any text in which what begins as a call is one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paceline.errors import InvalidRequestError
from paceline.structured.constraint import Constraint
from paceline.structured.json_schema import enforceable
from paceline.structured.params import MAX_SOURCE

_MAX_WHITESPACE = 40  # as in every other JSON document: see store.py
_ANY_OBJECT: dict[str, Any] = {"type": "object", "additionalProperties": True}
_NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
_Format = dict[str, Any]


@dataclass(frozen=True, slots=True)
class CallShape:
    """How one family of models writes calls: a JSON object a call, with something around it."""

    open: str
    between: str
    close: str
    separator: str  # between two calls
    head: str = ""  # before the first call
    tail: str = ""  # behind the last one
    trigger: str | None = None  # text that begins a call, wherever it stands; None: calls only at the beginning


@dataclass(frozen=True, slots=True)
class Function:
    """One function that may be called. `param` is the field of the request that its schema came from."""

    name: str
    parameters: dict[str, Any] | None
    strict: bool
    param: str


def only_calls(shape: CallShape, functions: Sequence[Function], *, parallel: bool, param: str) -> Constraint:
    """At least one call, and nothing but calls; one call unless `parallel`."""
    return _constraint(_calls(shape, functions, parallel), param)


def calls_or_answer(
    shape: CallShape, functions: Sequence[Function], answer: Constraint, *, parallel: bool
) -> Constraint:
    """Calls, or what `answer` asks for."""
    choices = [_calls(shape, functions, parallel), _format_of(answer)]
    return _constraint({"type": "or", "elements": choices}, answer.param)


def calls_in_text(shape: CallShape, functions: Sequence[Function], *, parallel: bool, param: str) -> Constraint:
    """Any text; what begins as a call is a call of one of these functions, with arguments of its schema."""
    if shape.trigger is not None:
        tags = {"type": "triggered_tags", "triggers": [shape.trigger], "tags": [_tag(shape, f) for f in functions]}
        return _constraint({**tags, "at_least_one": False, "stop_after_first": not parallel}, param)
    other = {"type": "regex", "pattern": rf"[^{shape.open[0]}\s][\s\S]*"}
    return _constraint({"type": "or", "elements": [_calls(shape, functions, parallel), other]}, param)


def _constraint(form: _Format, param: str) -> Constraint:
    source = json.dumps({"type": "structural_tag", "format": form}, ensure_ascii=False)
    if len(source) > MAX_SOURCE:
        raise InvalidRequestError(
            f"The schemas of {param} have {len(source)} characters together; at most {MAX_SOURCE} are taken.",
            param=param,
        )
    return Constraint(kind="structural_tag", source=source, param=param)


def _calls(shape: CallShape, functions: Sequence[Function], parallel: bool) -> _Format:
    calls: _Format = {
        "type": "tags_with_separator",
        "tags": [_tag(shape, function) for function in functions],
        "separator": shape.separator,
        "at_least_one": True,
        "stop_after_first": not parallel,
    }
    around = [{"type": "const_string", "value": text} for text in (shape.head, shape.tail)]
    if not shape.head:
        return calls
    return {"type": "sequence", "elements": [around[0], calls, around[1]]}


def _tag(shape: CallShape, function: Function) -> _Format:
    content = {
        "type": "json_schema",
        "json_schema": _arguments_schema(function),
        "max_whitespace_cnt": _MAX_WHITESPACE,
    }
    return {
        "type": "tag",
        "begin": shape.open + json.dumps(function.name) + shape.between,
        "content": content,
        "end": shape.close,
    }


def _arguments_schema(function: Function) -> dict[str, Any]:
    """A schema that cannot be enforced is an error for a strict function; for others the arguments are any object."""
    if function.parameters is None:
        return _NO_ARGUMENTS
    if function.parameters.get("type", "object") != "object":
        raise InvalidRequestError(f"{function.param} must be the schema of an object.", param=function.param)
    try:
        schema = enforceable({"type": "object", **function.parameters}, function.param)
    except InvalidRequestError:
        if function.strict:
            raise
        return _ANY_OBJECT
    return schema if isinstance(schema, dict) else _ANY_OBJECT


def _format_of(answer: Constraint) -> _Format:
    match answer.kind:
        case "json_schema" if not answer.compact:
            schema = json.loads(answer.source)
            return {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": _MAX_WHITESPACE}
        case "regex":
            return {"type": "regex", "pattern": answer.source}
        case "ebnf":
            return {"type": "grammar", "grammar": answer.source}
    raise InvalidRequestError(
        f"{answer.param} of this kind cannot stand beside tools; set tool_choice='none' or leave it out.",
        param=answer.param,
    )
