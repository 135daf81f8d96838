"""Custom resources against CustomResourceDefinitions that the user brings: types, unknown fields, CEL rules.

Three walks over the same structural schema (OpenAPI v3 as Kubernetes restricts it): JSON Schema for values, our own
for unknown fields and doubled list keys, and CEL for `x-kubernetes-validations` (where the evaluator is installed).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from paceline.deploy.check.documents import load_objects
from paceline.deploy.check.findings import Finding, Json, error, warning
from paceline.deploy.check.kustomize import SUFFIXES
from paceline.errors import ConfigurationError
from paceline.extras import to_install

Key = tuple[str, str]  # apiVersion, kind
_OBJECT_META = ("apiVersion", "kind", "metadata")


class CrdSchemas:
    """The schemas of a folder (or file) of CRDs, as YAML or JSON."""

    def __init__(self, schemas: dict[Key, Json]) -> None:
        self._schemas = schemas
        self._validators: dict[Key, Any] = {}

    @classmethod
    def read(cls, path: Path) -> CrdSchemas:
        if not path.exists():
            raise ConfigurationError(f"--crds {path}: no such file or folder.")
        files = sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES) if path.is_dir() else [path]
        schemas: dict[Key, Json] = {}
        for file in files:
            for content in load_objects(file):
                items = content.get("items", [content]) if isinstance(content, dict) else []
                for item in items:
                    if item.get("kind") == "CustomResourceDefinition":
                        schemas |= _schemas_of(item)
        if not schemas:
            raise ConfigurationError(f"--crds {path}: no CustomResourceDefinition there.")
        return cls(schemas)

    def __contains__(self, key: Key) -> bool:
        return key in self._schemas

    def kinds_of(self, api_version: str) -> list[str]:
        """That there are in a version of a group; none: the group is not among these CRDs."""
        return sorted(kind for version, kind in self._schemas if version == api_version)

    def findings(self, content: Json) -> list[Finding]:
        key = (content["apiVersion"], content["kind"])
        schema = self._schemas[key]
        found = [error(f"$.{path}", f"unknown field '{name}'.") for path, name in unknown_fields(schema, content)]
        found += [
            error(f"$.{path}", f"'{name}' is there twice; entries of this list are told apart by it.")
            for path, name in doubled_keys(schema, content)
        ]
        if key not in self._validators:
            self._validators[key] = _validator(schema)
        found += [
            error(fault.json_path, str(fault.message)[:300]) for fault in self._validators[key].iter_errors(content)
        ]
        return found or self._cel.findings(schema, with_defaults(schema, content))

    @cached_property
    def _cel(self) -> _Cel:
        return _Cel()

    @property
    def evaluates_cel(self) -> bool:
        return self._cel.is_available


def _schemas_of(crd: Json) -> dict[Key, Json]:
    spec = crd["spec"]
    return {
        (f"{spec['group']}/{version['name']}", spec["names"]["kind"]): version["schema"]["openAPIV3Schema"]
        for version in spec["versions"]
        if "schema" in version
    }


def _validator(schema: Json) -> Any:
    try:
        from jsonschema import Draft202012Validator, ValidationError, validators
    except ImportError:
        raise ConfigurationError(f"Checking against CRDs needs jsonschema: {to_install('deploy')}.") from None

    plain = Draft202012Validator.VALIDATORS["type"]

    def type_or_null(validator: Any, types: Any, instance: Any, part: Any) -> Iterator[ValidationError]:
        if instance is None and part.get("nullable"):
            return
        yield from plain(validator, types, instance, part)

    return validators.extend(Draft202012Validator, {"type": type_or_null})(schema)


def with_defaults(schema: Json, value: Any) -> Any:
    """A copy in which absent fields have the schema's defaults: that is what the API server's rules are asked about."""
    if isinstance(value, list):
        return [with_defaults(schema.get("items", {}), item) for item in value]
    if not isinstance(value, dict):
        return value
    properties, others = schema.get("properties", {}), schema.get("additionalProperties")
    given = {name: part["default"] for name, part in properties.items() if "default" in part} | value
    parts = {name: properties.get(name) or others for name in given}
    return {
        name: with_defaults(part, given[name]) if isinstance(part, dict) else given[name]
        for name, part in parts.items()
    }


def unknown_fields(schema: Json, value: Any, path: str = "", *, root: bool = True) -> Iterator[tuple[str, str]]:
    """Yield (path, field) for each field that the schema does not have; such are pruned, and refused when strict."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from unknown_fields(schema.get("items", {}), item, f"{path}[{index}]", root=False)
    if not isinstance(value, dict):
        return
    properties = schema.get("properties", {})
    others = schema.get("additionalProperties")
    embedded = root or schema.get("x-kubernetes-embedded-resource")
    is_open = bool(others) or schema.get("x-kubernetes-preserve-unknown-fields") or not properties
    for name, sub in value.items():
        place = f"{path}.{name}" if path else name
        if name in properties:
            yield from unknown_fields(properties[name], sub, place, root=False)
        elif isinstance(others, dict):
            yield from unknown_fields(others, sub, place, root=False)
        elif not is_open and not (embedded and name in _OBJECT_META):
            yield place, name


def doubled_keys(schema: Json, value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield (path, key) for entries that a list of type map (or set) has twice; the API server refuses them."""
    if isinstance(value, dict):
        others = schema.get("additionalProperties")
        for name, sub in value.items():
            part = schema.get("properties", {}).get(name) or others
            if isinstance(part, dict):
                yield from doubled_keys(part, sub, f"{path}.{name}" if path else name)
    if not isinstance(value, list):
        return
    keys = schema.get("x-kubernetes-list-map-keys")
    seen: set[str] = set()
    for index, item in enumerate(value):
        if keys and isinstance(item, dict):
            identity = "/".join(str(item.get(key, _default(schema, key))) for key in keys)
            if identity in seen:
                yield f"{path}[{index}]", identity
            seen.add(identity)
        yield from doubled_keys(schema.get("items", {}), item, f"{path}[{index}]")


def _default(schema: Json, key: str) -> Any:
    return schema.get("items", {}).get("properties", {}).get(key, {}).get("default", "")


class _Cel:
    """`x-kubernetes-validations`. Rules about a change (oldSelf) say nothing about one object and are left out."""

    def __init__(self) -> None:
        try:
            import cel
        except ImportError:
            self._evaluate = None
        else:
            self._evaluate = cel.evaluate

    @property
    def is_available(self) -> bool:
        return self._evaluate is not None

    def findings(self, schema: Json, content: Json) -> list[Finding]:
        if self._evaluate is None:
            return []
        found = []
        for path, rule, value in _rules(schema, content, "$"):
            try:
                holds = self._evaluate(rule["rule"], {"self": value}) is True
            except KeyError as missing:  # the API server refuses such an object, if not for a good reason
                found.append(error(path, f"a rule of the CRD reads the field {missing}, which is not there: give it."))
                continue
            except Exception as fault:  # a rule that this evaluator cannot run says nothing about the object
                found.append(warning(path, f"a rule of the CRD could not be evaluated here: {str(fault)[:120]}"))
                continue
            if not holds:
                found.append(error(path, str(rule.get("message", rule["rule"]))))
        return found


def _rules(schema: Json, value: Any, path: str) -> Iterator[tuple[str, Json, Any]]:
    for rule in schema.get("x-kubernetes-validations", []):
        if "oldSelf" not in rule["rule"]:
            yield path, rule, value
    if isinstance(value, dict):
        others = schema.get("additionalProperties")
        for name, sub in value.items():
            part = schema.get("properties", {}).get(name) or others
            if isinstance(part, dict):
                yield from _rules(part, sub, f"{path}.{name}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _rules(schema.get("items", {}), item, f"{path}[{index}]")
