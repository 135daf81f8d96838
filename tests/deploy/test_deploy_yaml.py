"""The YAML that deploy reads: strict, and bounded in what a few lines can stand for."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from paceline.deploy.check import check_files
from paceline.deploy.strict_yaml import StrictLoader, in_words
from paceline.deploy.values_file import load_values
from paceline.errors import ConfigurationError


def bomb(levels: int, width: int, *, mapping: bool = False) -> str:
    lines = ["a0: &a0 x"]
    for level in range(1, levels + 1):
        entries = [f"{f'k{i}: ' if mapping else ''}*a{level - 1} " for i in range(width)]
        lines.append(f"a{level}: &a{level} {'{' if mapping else '['}{', '.join(entries)}{'}' if mapping else ']'}")
    return "\n".join(lines) + "\n"


def as_values(text: str) -> str:
    return "engine:\n  speculative_config:\n" + "".join(f"    {line}\n" for line in text.splitlines())


def as_manifest(text: str) -> str:
    data = "".join(f"  {line}\n" for line in text.splitlines())
    return f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: a}}\ndata:\n{data}"


TOO_MUCH = {
    "lists": (bomb(9, 10), "aliases"),
    "mappings": (bomb(9, 10, mapping=True), "aliases"),
    "a long text": (f"a: &a {'x' * 100_000}\nb: [{', '.join(['*a'] * 1000)}]\n", "aliases"),
    "a chain": (bomb(300, 1), "inside each other"),
    "itself": ("a: &a [*a]\n", "holds itself"),
    "itself, as a mapping": ("a: &a {b: *a}\n", "holds itself"),
    "merged": ("a: &a {<<: *a}\n", "holds itself"),
    "deep": ("a: " + "[" * 300 + "]" * 300 + "\n", "inside each other"),
    "deeper than libyaml takes": ("a: " + "[" * 100_000 + "\n", "nesting|inside"),
}


@pytest.mark.parametrize("command", ["render", "check"])
@pytest.mark.parametrize(("text", "message"), TOO_MUCH.values(), ids=list(TOO_MUCH))
def test_what_is_too_much_is_refused_at_once(text: str, message: str, command: str, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text((as_values if command == "render" else as_manifest)(text))
    start = time.process_time()
    with pytest.raises(ConfigurationError, match=message):
        load_values(file, "paceline", "smoke-cpu") if command == "render" else check_files([file])
    assert time.process_time() - start < 5


def test_json_is_bounded_too(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text('{"a":' * 500 + "1" + "}" * 500)
    with pytest.raises(ConfigurationError, match="inside each other"):
        check_files([file])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: &a {x: 1}\nb: *a\n", {"a": {"x": 1}, "b": {"x": 1}}),
        ("a: &a {x: 1, y: 1}\nb: {<<: *a, y: 2}\n", {"a": {"x": 1, "y": 1}, "b": {"x": 1, "y": 2}}),
        ("a: [" + "1, " * 100_001 + "1]", {"a": [1] * 100_002}),
    ],
    ids=["alias", "merge", "many values written out"],
)
def test_what_is_taken(text: str, expected: Any) -> None:
    assert yaml.load(text, Loader=StrictLoader) == expected


WRONG: list[tuple[str, str]] = [
    ("a: 1\na: 2\n", "line 2, column 1: the key 'a' is there twice: put both into one"),
    ("a: *hunter2\n", r"an alias \(\*…\) that nothing defines"),
    ("a: !hunter2 x\n", r"a tag \(!…\) that means nothing here"),
    ("a: !!int hunter2\n", "a value is not what its form or tag says"),
    ("a: 2026-13-45\n", "a value is not what its form or tag says"),
    ("? [hunter2]\n: 1\n", "a key must be a text"),
    ("a: 'hunter2\n", "line 2, column 1"),
]


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_wrong_yaml_is_said_by_its_place_and_not_by_its_text(text: str, message: str) -> None:

    with pytest.raises((yaml.YAMLError, ValueError)) as raised:
        yaml.load(text, Loader=StrictLoader)
    said = in_words(raised.value)
    assert re.search(message, said), said
    assert "hunter2" not in said
    assert "unicode string" not in said
