"""YAML as kubectl --validate=strict reads it, and bounded.

A key that is given twice is an error (plain YAML keeps the last). Aliases stand for copies, and copies of copies grow
without end from a few lines: beyond `MOST_COPIES` values they are refused, and so are values that hold themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

MOST_COPIES = 100_000  # values (or 100 characters of one) that aliases may add to those that are written
DEEPEST = 200  # lists and mappings inside each other, so that what walks through them does not run out of stack
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MERGE = "tag:yaml.org,2002:merge"  # of the key <<


class StrictLoader(_Loader):  # type: ignore[misc]
    """For yaml.load and yaml.load_all."""

    def get_single_node(self) -> Any:
        return _bounded(super().get_single_node())

    def get_node(self) -> Any:
        return _bounded(super().get_node())


def in_words(error: Exception) -> str:
    """'not valid YAML: line 3, column 1: …': never the text itself, which may hold a secret."""
    if not isinstance(error, yaml.YAMLError):
        return "not valid YAML: a value is not what its form or tag says. Put it in quotes."
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
    what = getattr(error, "problem", None) or getattr(error, "reason", None) or "it cannot be read"
    if "alias" in what and "undefined" in what:
        what = "an alias (*…) that nothing defines; put a text that begins with * in quotes"
    elif "could not determine a constructor" in what:
        what = "a tag (!…) that means nothing here; put a text that begins with ! in quotes"
    elif "duplicate anchor" in what:
        what = "an anchor (&…) that is there twice; put a text that begins with & in quotes"
    return f"not valid YAML: {where}{what}."


def _mapping(loader: Any, node: yaml.MappingNode) -> Any:
    seen = set()
    for key_node, _ in node.value:
        if key_node.tag == _MERGE:  # what it brings is overridden, and not given twice
            continue
        key = loader.construct_object(key_node, deep=True)
        try:
            is_twice = key in seen
        except TypeError:
            raise yaml.constructor.ConstructorError(
                None, None, "a key is a list or a mapping; a key must be a text", key_node.start_mark
            ) from None
        if is_twice:
            raise yaml.constructor.ConstructorError(
                None, None, f"the key '{key}' is there twice: put both into one", key_node.start_mark
            )
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def _bounded(root: Any) -> Any:
    if root is None:
        return None
    seen: dict[int, tuple[int, int]] = {}
    written = 0

    def measure(node: Any, within: frozenset[int]) -> tuple[int, int]:
        """Values in `node` and its depth, aliases written out. Each node is looked at once."""
        nonlocal written
        if id(node) in seen:
            return seen[id(node)]
        if id(node) in within:
            raise yaml.constructor.ConstructorError(None, None, "an alias (*…) holds itself", node.start_mark)
        own = 1 + (len(node.value) // 100 if isinstance(node, yaml.ScalarNode) else 0)
        written += own
        inner = (
            [measure(each, within | {id(node)}) for each in _children(node)]
            if len(within) < DEEPEST
            else [(0, DEEPEST)]
        )
        size, depth = own + sum(each for each, _ in inner), 1 + max((each for _, each in inner), default=0)
        if depth > DEEPEST:
            raise yaml.constructor.ConstructorError(
                None, None, f"more than {DEEPEST} lists and mappings are inside each other", node.start_mark
            )
        seen[id(node)] = (size, depth)
        return size, depth

    if measure(root, frozenset())[0] - written > MOST_COPIES:
        raise yaml.constructor.ConstructorError(
            None, None, f"its aliases (*…) stand for more than {MOST_COPIES} values: write them out", root.start_mark
        )
    return root


def _children(node: Any) -> Iterator[Any]:
    if isinstance(node, yaml.SequenceNode):
        yield from node.value
    elif isinstance(node, yaml.MappingNode):
        for pair in node.value:
            yield from pair
