"""JSON Schema, as far as it is enforced: a schema comes out that means no more than what xgrammar really does.

xgrammar accepts many schemas of which it enforces a part. Here a keyword is either enforced, or rewritten into
what is, or has no say over the document (title, description, default ...), or is refused with its path. A
document that the rewritten schema allows is valid under the schema as it was given; some valid documents are
never written:
- an object that lists properties has no others, unless additionalProperties asks for them;
- properties come in the order of the schema;
- characters of a string that has a pattern or a length are never written as escapes.

One gap is left: with additionalProperties a name may be spelled with \\u escapes, and so repeat a listed one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

from paceline.errors import InvalidRequestError, did_you_mean
from paceline.structured.regex import json_pattern

Schema = dict[str, Any]

MAX_DEPTH = 64
MAX_SCHEMAS = 10_000  # in one
MAX_ONE_OF = 64  # each is compared with each
MAX_COMPARED = 10_000  # values of two enums

_ANNOTATIONS = frozenset({
    "title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "$comment",
    "$schema", "$id", "discriminator", "contentMediaType", "contentEncoding", "contentSchema", "$defs", "definitions",
})  # fmt: skip
_FAMILIES: dict[str, frozenset[str]] = {
    "object": frozenset({
        "properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties",
        "maxProperties", "unevaluatedProperties",
    }),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems", "unevaluatedItems"}),
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
}  # fmt: skip
_ANY_TYPE = frozenset({"type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref"})
_ASSERTIONS = _ANY_TYPE.union(*_FAMILIES.values())
_KNOWN = _ANNOTATIONS | _ASSERTIONS
_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
# Formats that xgrammar has a grammar for; on numbers a format is OpenAPI's name of a machine type.
FORMATS = (
    "date", "time", "date-time", "duration", "email", "uuid", "ipv4", "ipv6", "hostname", "uri", "uri-reference",
    "uri-template", "json-pointer", "relative-json-pointer",
)  # fmt: skip
_REFUSED = {
    "not": "list what is allowed with anyOf or enum",
    "if": "use anyOf", "then": "use anyOf", "else": "use anyOf",
    "uniqueItems": "leave it out and check the answer",
    "contains": "use prefixItems", "minContains": "use prefixItems", "maxContains": "use prefixItems",
    "dependentRequired": "use anyOf", "dependentSchemas": "use anyOf", "dependencies": "use anyOf",
    "additionalItems": "use items beside prefixItems",
    "nullable": 'use "type": [..., "null"]',
    "$dynamicRef": "use $ref", "$dynamicAnchor": "use $ref", "$anchor": "use $ref with a path",
    "$recursiveRef": "use $ref", "$recursiveAnchor": "use $ref",
}  # fmt: skip


def enforceable(schema: Any, param: str) -> Schema | bool:
    """The schema in the form that is enforced. Raises InvalidRequestError naming `param` and the place in it."""
    if not isinstance(schema, dict | bool):
        raise InvalidRequestError(f"{param} must be a JSON schema (an object), not {_kind(schema)}.", param=param)
    return _Walk(schema, param).node(schema, "$", 0)


class _Walk:
    def __init__(self, root: Schema | bool, param: str) -> None:
        self._root = root
        self._param = param
        self._count = 0

    def node(self, schema: Any, path: str, depth: int) -> Schema | bool:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise self._wrong(path, f"a schema is an object, true or false, not {_kind(schema)}")
        if depth > MAX_DEPTH:
            raise self._wrong(path, f"schemas are nested at most {MAX_DEPTH} deep")
        self._count += 1
        if self._count > MAX_SCHEMAS:
            raise self._wrong(path, f"a schema may hold at most {MAX_SCHEMAS} others")
        self._check_names(schema, path)
        result = self._asserted(schema, path, depth)
        for name in ("$defs", "definitions"):
            if name in schema:
                result[name] = self._named(schema[name], f"{path}.{name}", depth)
        return result

    # What one schema asks for, by its form

    def _asserted(self, schema: Schema, path: str, depth: int) -> Schema:
        asked = {name: value for name, value in schema.items() if name in _ASSERTIONS}
        for form in ("$ref", "allOf", "anyOf", "oneOf", "enum", "const"):
            if form in asked:
                self._check_alone(asked, form, path)
                return self._of_form(form, asked, path, depth)
        return self._typed(asked, path, depth)

    def _check_alone(self, asked: Schema, form: str, path: str) -> None:
        allowed = {form, "type"} if form in ("enum", "const") else {form}
        for name in asked.keys() - allowed:
            raise self._wrong(path, f"'{name}' beside '{form}' is not enforced; move it into the schema it belongs to")

    def _of_form(self, form: str, asked: Schema, path: str, depth: int) -> Schema:
        value = asked[form]
        if form == "$ref":
            self._resolve(value, path)
            return {"$ref": value}
        if form in ("enum", "const"):
            values = value if form == "enum" else [value]
            if not isinstance(values, list) or not values:
                raise self._wrong(path, "'enum' must be a list with at least one value")
            return {"enum": self._of_types(values, asked.get("type"), path)}
        if not isinstance(value, list) or not value:
            raise self._wrong(path, f"'{form}' must be a list of schemas")
        parts = [self.node(part, f"{path}.{form}[{index}]", depth + 1) for index, part in enumerate(value)]
        if form == "allOf":
            if len(parts) != 1:
                raise self._wrong(path, "'allOf' of several schemas is not enforced; write them as one")
            return parts[0] if isinstance(parts[0], dict) else {"anyOf": parts}
        if form == "oneOf":
            self._check_disjoint(value, path)
        return {"anyOf": parts}

    def _of_types(self, values: list[Any], types: Any, path: str) -> list[Any]:
        if types is None:
            return values
        wanted = self._types(types, path)
        fitting = [value for value in values if _types_of(value) & set(wanted)]
        if not fitting:
            raise self._wrong(path, f"no value is of type {types!r}")
        return fitting

    def _typed(self, asked: Schema, path: str, depth: int) -> Schema:
        families = [kind for kind, names in _FAMILIES.items() if asked.keys() & names]
        if "type" in asked:
            types = self._types(asked["type"], path)
        elif len(families) > 1:
            raise self._wrong(path, f"give a 'type': the keywords are of {' and '.join(families)}")
        else:
            types = families
        result: Schema = {"type": types[0] if len(types) == 1 else types} if types else {}
        for kind in families:
            if kind in types or (kind == "number" and "integer" in types):  # of other types they say nothing
                own = {name: value for name, value in asked.items() if name in _FAMILIES[kind]}
                result |= self._family(kind, own, types, path, depth)
        return result

    def _family(self, kind: str, own: Schema, types: list[str], path: str, depth: int) -> Schema:
        for name in own.keys() & set(_COUNTS):
            if type(own[name]) is not int or own[name] < 0:
                raise self._wrong(path, f"'{name}' must be an integer of at least 0")
        match kind:
            case "object":
                return self._object(own, path, depth)
            case "array":
                return self._array(own, path, depth)
            case "string":
                return self._string(own, path)
        return self._number(own, types, path)

    # The four kinds of values that have keywords

    def _object(self, own: Schema, path: str, depth: int) -> Schema:
        self._check_object(own, path)
        result = dict(own)
        result.pop("unevaluatedProperties", None)
        rest = own.get("additionalProperties", True)
        properties = self._named(own.get("properties", {}), f"{path}.properties", depth)
        for name in own.get("required", []):
            if name not in properties:  # xgrammar requires only names that are listed
                if rest is False or "patternProperties" in own or "propertyNames" in own:
                    raise self._wrong(path, f"'{name}' is required and not among the properties")
                properties[name] = self.node(rest, f"{path}.additionalProperties", depth + 1)
        if properties:
            result["properties"] = properties
        closing = {"additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames"}
        if not properties and not own.keys() & closing and own.keys() & {"minProperties", "maxProperties"}:
            result["additionalProperties"] = True  # xgrammar would allow no property at all
        if isinstance(own.get("additionalProperties"), dict):
            result["additionalProperties"] = self.node(rest, f"{path}.additionalProperties", depth + 1)
        if "patternProperties" in own:
            result["patternProperties"] = self._patterns(own["patternProperties"], path, depth)
        if "propertyNames" in own:
            result["propertyNames"] = self.node(own["propertyNames"], f"{path}.propertyNames", depth + 1)
        return result

    def _check_object(self, own: Schema, path: str) -> None:
        required, rest = own.get("required", []), own.get("additionalProperties")
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise self._wrong(path, "'required' must be a list of names")
        if own.get("unevaluatedProperties", False) is not False:
            raise self._wrong(path, "'unevaluatedProperties' is enforced as false only; use additionalProperties")
        if "patternProperties" in own and rest not in (None, False):
            raise self._wrong(path, "'additionalProperties' beside 'patternProperties' is not enforced")
        if "patternProperties" in own and "properties" in own:
            raise self._wrong(path, "'patternProperties' beside 'properties' is not enforced")
        if "propertyNames" in own and own.keys() & {"properties", "patternProperties"}:
            raise self._wrong(path, "'propertyNames' beside 'properties' is not enforced")
        free = (
            rest not in (None, False)
            or own.keys() & {"patternProperties", "propertyNames"}
            or not own.get("properties")
        )
        if own.get("minProperties", 0) > 1 and free:
            raise self._wrong(path, "'minProperties' above 1 needs listed properties: free names may repeat")

    def _patterns(self, patterns: Any, path: str, depth: int) -> Schema:
        if not isinstance(patterns, dict) or len(patterns) != 1:
            raise self._wrong(path, "'patternProperties' must be an object with one pattern")
        pattern, schema = next(iter(patterns.items()))
        rewritten = self._pattern(pattern, f"{path}.patternProperties")
        return {rewritten: self.node(schema, f"{path}.patternProperties", depth + 1)}

    def _array(self, own: Schema, path: str, depth: int) -> Schema:
        result = dict(own)
        if result.pop("unevaluatedItems", False) is not False:
            raise self._wrong(path, "'unevaluatedItems' is enforced as false only; use items")
        if isinstance(own.get("items"), list):
            raise self._wrong(path, "'items' is one schema; for one schema an item use prefixItems")
        if "items" in own:
            result["items"] = self.node(own["items"], f"{path}.items", depth + 1)
        elif own.get("unevaluatedItems") is False:
            result["items"] = False
        elif _counts_unlisted(own):
            result["items"] = True  # xgrammar would allow no item but those listed
        if "prefixItems" in own:
            if not isinstance(own["prefixItems"], list):
                raise self._wrong(path, "'prefixItems' must be a list of schemas")
            result["prefixItems"] = [
                self.node(item, f"{path}.prefixItems[{index}]", depth + 1)
                for index, item in enumerate(own["prefixItems"])
            ]
        return result

    def _string(self, own: Schema, path: str) -> Schema:
        if ("pattern" in own or "format" in own) and len(own) > 1:
            raise self._wrong(path, "'pattern', 'format' and a length are enforced one at a time; leave one")
        if own.get("format", FORMATS[0]) not in FORMATS:
            raise self._wrong(path, f"format {own['format']!r} is not enforced; known: {', '.join(FORMATS)}")
        return {"pattern": self._pattern(own["pattern"], path)} if "pattern" in own else dict(own)

    def _number(self, own: Schema, types: list[str], path: str) -> Schema:
        for name, value in own.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise self._wrong(path, f"'{name}' must be a number")
        if "multipleOf" in own and (len(own) > 1 or "number" in types or type(own["multipleOf"]) is not int):
            raise self._wrong(path, "'multipleOf' is enforced for integers without a range only")
        return dict(own)

    # Small things

    def _check_names(self, schema: Schema, path: str) -> None:
        for name, value in schema.items():
            if name in _REFUSED and (name, value) != ("uniqueItems", False):
                raise self._wrong(path, f"'{name}' is not enforced; {_REFUSED[name]}")
            if name not in _KNOWN and name not in _REFUSED and not name.startswith("x-"):
                raise self._wrong(path, f"{name!r:.60} is no keyword that is enforced.{did_you_mean(name, _KNOWN)}")

    def _named(self, schemas: Any, path: str, depth: int) -> Schema:
        if not isinstance(schemas, dict):
            raise self._wrong(path, f"an object of schemas is expected, not {_kind(schemas)}")
        return {name: self.node(schema, f"{path}.{name}", depth + 1) for name, schema in schemas.items()}

    def _types(self, types: Any, path: str) -> list[str]:
        listed = types if isinstance(types, list) else [types]
        if not listed or not all(isinstance(name, str) and name in _TYPES for name in listed):
            raise self._wrong(path, f"'type' must be one of {', '.join(_TYPES)}, or a list of them; not {types!r:.60}")
        return [name for name in listed if not (name == "integer" and "number" in listed)]

    def _pattern(self, pattern: Any, path: str) -> str:
        if not isinstance(pattern, str):
            raise self._wrong(path, "a pattern must be a string")
        try:
            return json_pattern(pattern, self._param)
        except InvalidRequestError as error:
            raise self._wrong(path, str(error).removeprefix(f"{self._param}: ").rstrip(".")) from None

    def _resolve(self, reference: Any, path: str) -> Any:
        """What a reference inside this document points at."""
        if not isinstance(reference, str) or not re.fullmatch(r"#(/[^~%]+)?", reference):
            raise self._wrong(path, "'$ref' must be a path in this schema, such as #/$defs/name")
        target: Any = self._root
        for name in reference.split("/")[1:]:
            if not isinstance(target, dict) or name not in target:
                raise self._wrong(path, f"'$ref' points at {reference}, which is not there")
            target = target[name]
        if not isinstance(target, dict | bool):
            raise self._wrong(path, f"'$ref' points at {reference}, which is no schema")
        return target

    def _check_disjoint(self, parts: list[Any], path: str) -> None:
        """oneOf is enforced as anyOf: the same thing if no document fits two of its schemas."""
        if len(parts) > MAX_ONE_OF:
            raise self._wrong(path, f"'oneOf' may hold at most {MAX_ONE_OF} schemas; use anyOf")
        for one, other in combinations([self._target(part, path) for part in parts], 2):
            if not (_are_disjoint(one, other) or self._differ_in_a_property(one, other, path)):
                raise self._wrong(
                    path, "'oneOf' is enforced only where its schemas plainly exclude each other; use anyOf"
                )

    def _differ_in_a_property(self, one: Any, other: Any, path: str) -> bool:
        """A property that both objects must have, with values that exclude each other: a discriminator."""
        if not isinstance(one, dict) or not isinstance(other, dict):
            return False
        return any(
            _are_disjoint(self._target(mine, path), self._target(theirs, path))
            for mine, theirs in _common_properties(one, other)
        )

    def _target(self, schema: Any, path: str) -> Any:
        for _ in range(MAX_DEPTH):
            if not isinstance(schema, dict) or "$ref" not in schema:
                break
            schema = self._resolve(schema["$ref"], path)
        return schema

    def _wrong(self, path: str, reason: str) -> InvalidRequestError:
        return InvalidRequestError(f"{self._param}: at {path}: {reason.rstrip('.')}.", param=self._param)


def _kind(value: object) -> str:
    names: Mapping[type, str] = {type(None): "null", list: "a list", str: "a string", bool: "a boolean"}
    return names.get(type(value), "a number")


def _counts_unlisted(own: Schema) -> bool:
    """An array's counts are about items that no keyword describes."""
    listed = own.get("prefixItems")
    if isinstance(listed, list) and listed:
        return bool(own.get("minItems", 0) > len(listed))
    return "minItems" in own or "maxItems" in own


def _types_of(value: object) -> set[str]:
    match value:
        case bool():
            return {"boolean"}
        case int():
            return {"integer", "number"}
        case float():
            return {"number", "integer"} if value.is_integer() else {"number"}
        case str():
            return {"string"}
        case None:
            return {"null"}
        case list():
            return {"array"}
    return {"object"}


def _values(schema: Schema) -> list[Any] | None:
    """The values of an enum or a const."""
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def _equal(one: object, other: object) -> bool:
    """JSON's equality: 1 is 1.0 and is not true."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _are_disjoint(one: Any, other: Any) -> bool:
    """Plain to see, by their types or their values, that no document fits both."""
    if not isinstance(one, dict) or not isinstance(other, dict):
        return False
    mine, theirs = _values(one), _values(other)
    if mine is not None and theirs is not None:
        return len(mine) * len(theirs) <= MAX_COMPARED and not any(_equal(a, b) for a in mine for b in theirs)
    kinds = [_possible_types(schema) for schema in (one, other)]
    return None not in kinds and not set(kinds[0] or ()) & set(kinds[1] or ())


def _possible_types(schema: Schema) -> frozenset[str] | None:
    """Types a document of this schema may have; None: not plain to see. Integers are numbers."""
    values, types = _values(schema), schema.get("type")
    if values is not None:
        return frozenset().union(*map(_types_of, values)) - {"integer"}
    if types is None:
        return None
    listed = types if isinstance(types, list) else [types]
    if not all(isinstance(name, str) for name in listed):
        return None
    return frozenset("number" if name == "integer" else name for name in listed)


def _common_properties(one: Schema, other: Schema) -> Iterator[tuple[Any, Any]]:
    """Properties that both require and both list."""
    if not all(isinstance(schema.get("properties", {}), dict) for schema in (one, other)):
        return
    mine, theirs = one.get("required"), other.get("required")
    if not isinstance(mine, list) or not isinstance(theirs, list):
        return
    for name in [name for name in mine if isinstance(name, str) and name in theirs]:
        if name in one.get("properties", {}) and name in other.get("properties", {}):
            yield one["properties"][name], other["properties"][name]
