"""What a request may ask for, in vLLM's and in OpenAI's words, as one Constraint.

SamplingParams(structured_outputs=StructuredOutputsParams(json=schema))      vLLM's class, or a dict
{"structured_outputs": {"regex": "..."}}, {"guided_choice": ["a", "b"]}       vLLM's API, new and old
{"response_format": {"type": "json_schema", "json_schema": {"schema": ...}}}  OpenAI's
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from paceline.errors import InvalidRequestError, did_you_mean
from paceline.structured.constraint import Constraint
from paceline.structured.json_schema import enforceable
from paceline.structured.regex import whole_match

MAX_SOURCE = 131_072  # characters of a schema, pattern or grammar


@dataclass(frozen=True, kw_only=True)
class StructuredOutputsParams:
    """vLLM's class of this name: give exactly one of json, regex, choice, grammar, json_object.

    json                    a JSON schema, as an object or as text
    regex                   the whole answer matches
    choice                  the answer is one of these texts
    grammar                 GBNF (`root ::= ...`) or Lark (`start: ...`)
    json_object             any JSON object
    disable_any_whitespace  JSON on one line: no white space but one blank behind `,` and `:`
    disable_fallback        accepted, changes nothing: there is one backend and no fallback
    """

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    disable_fallback: bool = False


_KINDS = ("json", "regex", "choice", "grammar", "json_object")
# Fields of vLLM's class that are not offered, with the values that ask for nothing.
_NOT_OFFERED: dict[str, tuple[Any, ...]] = {
    "structural_tag": (None,),
    "whitespace_pattern": (None,),
    "disable_additional_properties": (None, False),
    "backend": (None, "auto", "xgrammar"),
}


def constraint_of(value: object, param: str) -> Constraint | None:
    """From `structured_outputs` in either form. None if nothing is asked for. `param` leads the names in errors."""
    if value is None or isinstance(value, Constraint):
        return value
    if isinstance(value, StructuredOutputsParams):
        value = asdict(value)
    if not isinstance(value, Mapping):
        raise InvalidRequestError(
            f"{param} must be StructuredOutputsParams or an object with one of {', '.join(_KINDS)}; not {value!r:.60}.",
            param=param,
        )
    options = _known_options(value, param)
    given = [name for name in _KINDS if options.get(name) not in (None, False)]
    if len(given) != 1:
        found = " and ".join(given) if given else "none"
        raise InvalidRequestError(f"{param} needs exactly one of {', '.join(_KINDS)}; found {found}.", param=param)
    compact = options.get("disable_any_whitespace", False)
    if compact and given[0] not in ("json", "json_object"):
        raise InvalidRequestError(
            f"{param}.disable_any_whitespace is about JSON; it means nothing beside {given[0]}. Leave it out.",
            param=param,
        )
    return single(given[0], options[given[0]], f"{param}.{given[0]}", compact=compact)


def single(kind: str, value: Any, param: str, *, compact: bool = False) -> Constraint:
    """One constraint of the kinds json, regex, choice, grammar and json_object. Raises InvalidRequestError."""
    if isinstance(value, str):
        _check_length(value, param)
    constraint = _MAKERS[kind](value, param, compact)
    _check_length(constraint.source, param)
    try:
        constraint.source.encode()
    except UnicodeEncodeError:
        raise InvalidRequestError(f"{param} is not valid Unicode.", param=param) from None
    return constraint


def _check_length(text: str, param: str) -> None:
    if len(text) > MAX_SOURCE:
        raise InvalidRequestError(f"{param} has {len(text)} characters; at most {MAX_SOURCE} are taken.", param=param)


def response_format_constraint(value: object) -> Constraint | None:
    """From OpenAI's `response_format`; None for text."""
    param = "response_format"
    if value is None:
        return None
    if not isinstance(value, Mapping) or value.get("type") not in ("text", "json_object", "json_schema"):
        raise InvalidRequestError(
            f"{param} must be an object whose type is text, json_object or json_schema.", param=f"{param}.type"
        )
    kind = value["type"]
    _refuse_unknown(value, {"type", "json_schema"} if kind == "json_schema" else {"type"}, param)
    if kind == "text":
        return None
    if kind == "json_object":
        return single("json_object", True, param)
    return _named_schema(value.get("json_schema"), f"{param}.json_schema")


def _named_schema(value: object, param: str) -> Constraint:
    """`strict` may be anything: a schema is always enforced."""
    if not isinstance(value, Mapping):
        raise InvalidRequestError(f"{param} must be an object with a name and a schema.", param=param)
    _refuse_unknown(value, {"name", "description", "schema", "strict"}, param)
    for name, kind in (("name", str), ("description", str), ("strict", bool)):
        if value.get(name) is not None and not isinstance(value[name], kind):
            raise InvalidRequestError(f"{param}.{name} must be a {kind.__name__}.", param=f"{param}.{name}")
    if value.get("schema") is None:
        raise InvalidRequestError(f"{param} needs a 'schema'.", param=f"{param}.schema")
    return single("json", value["schema"], f"{param}.schema")


def _known_options(value: Mapping[str, Any], param: str) -> dict[str, Any]:
    known = {field.name for field in fields(StructuredOutputsParams)}
    options = {}
    for name, option in value.items():
        if name in _NOT_OFFERED and option in _NOT_OFFERED[name]:
            continue
        if name in _NOT_OFFERED:
            raise InvalidRequestError(f"{param}.{name} is not supported; leave it out.", param=f"{param}.{name}")
        if name not in known:
            raise InvalidRequestError(
                f"Unknown field '{name}' in {param}.{did_you_mean(str(name), known)}", param=f"{param}.{name}"
            )
        if name.startswith("disable_") and not isinstance(option, bool):
            raise InvalidRequestError(f"{param}.{name} must be true or false.", param=f"{param}.{name}")
        options[name] = option
    return options


def _refuse_unknown(value: Mapping[str, Any], known: set[str], param: str) -> None:
    for name in value.keys() - known:
        raise InvalidRequestError(
            f"Unknown field '{name}' in {param}.{did_you_mean(str(name), known)}", param=f"{param}.{name}"
        )


def _json(value: Any, param: str, compact: bool) -> Constraint:
    if isinstance(value, str):
        try:
            value = json.loads(value, parse_constant=_no_json_number)
        except (ValueError, RecursionError) as error:
            raise InvalidRequestError(f"{param} is not valid JSON: {error}.", param=param) from None
    schema = enforceable(value, param)
    try:
        source = json.dumps(schema, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{param} holds what JSON does not know: {error}.", param=param) from None
    return Constraint(kind="json_schema", source=source, compact=compact, param=param)


def _no_json_number(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _json_object(value: Any, param: str, compact: bool) -> Constraint:
    if value is not True:
        raise InvalidRequestError(f"{param} must be true, or left out.", param=param)
    source = json.dumps({"type": "object", "additionalProperties": True})
    return Constraint(kind="json_schema", source=source, compact=compact, param=param)


def _regex(value: Any, param: str, compact: bool) -> Constraint:
    _check_text(value, param)
    return Constraint(kind="regex", source=whole_match(value, param), param=param)


def _choice(value: Any, param: str, compact: bool) -> Constraint:
    if not isinstance(value, list) or not value or not all(isinstance(text, str) and text for text in value):
        raise InvalidRequestError(f"{param} must be a list of non-empty texts.", param=param)
    source = "root ::= " + " | ".join(json.dumps(text, ensure_ascii=False) for text in dict.fromkeys(value))
    return Constraint(kind="ebnf", source=source, param=param)


def _grammar(value: Any, param: str, compact: bool) -> Constraint:
    _check_text(value, param)
    return Constraint(kind="ebnf" if "::=" in value else "lark", source=value, param=param)


def _check_text(value: Any, param: str) -> None:
    if not isinstance(value, str) or not value:
        raise InvalidRequestError(f"{param} must be a non-empty text.", param=param)


_MAKERS: dict[str, Callable[[Any, str, bool], Constraint]] = {
    "json": _json,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
    "json_object": _json_object,
}
