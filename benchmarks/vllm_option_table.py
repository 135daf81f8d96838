"""Makes src/paceline/runtimes/vllm/options.json: what each option of `vllm serve` takes.

    python benchmarks/vllm_option_table.py VLLM_PYTHON SOURCES

VLLM_PYTHON has vLLM 0.32 (docs/vllm-runtime.md says how to install it); its own parser is asked. SOURCES has a folder
for each version, 0.20.0/vllm and so on, unpacked from the published wheels. They are only read as text: what another
version takes beyond 0.32 (values of a closed list, keys of an object, looser bounds) is added under `elsewhere`, so
that nothing is refused there that some version takes.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paceline.runtimes.vllm import probe_script

TABLE = Path(probe_script.__file__).with_name("options.json")
BOUNDS = ("ge", "gt", "le", "lt")
NOT_OPTIONS = ("help", "model")


def main(python: str, sources: Path) -> None:
    run = subprocess.run([python, probe_script.__file__], capture_output=True, text=True, check=True)
    answer = json.loads(run.stdout)
    versions = sorted(path.parent.name for path in sources.glob("*/vllm"))
    seen = [Source(sources / version / "vllm") for version in versions]
    kinds = {name: kind for name, kind in sorted(answer["kinds"].items()) if name not in NOT_OPTIONS}
    speculative = dict(sorted(answer["speculative_kinds"].items()))
    table = {
        "read_from": f"{answer['distribution']} {answer['version']}",
        "elsewhere_from": versions,
        "kinds": kinds,
        "speculative_kinds": speculative,
        "elsewhere": {
            "kinds": elsewhere(kinds, seen),
            "speculative_kinds": elsewhere(speculative, seen, "SpeculativeConfig"),
        },
    }
    TABLE.write_text(text_of(table))


class Source:
    """The declarations of one version, by the names of classes and fields."""

    def __init__(self, folder: Path) -> None:
        self._aliases: dict[str, ast.expr] = {}
        self.fields: dict[tuple[str, str], ast.AnnAssign] = {}
        self.by_field: dict[str, list[ast.AnnAssign]] = defaultdict(list)
        self.classes: dict[str, list[str]] = defaultdict(list)
        self.arguments: dict[str, ast.Call] = {}
        for path in sorted([*folder.glob("config/*.py"), *folder.glob("engine/arg_utils.py"),
                            *folder.glob("entrypoints/**/*.py")]):  # fmt: skip
            for node in ast.walk(ast.parse(path.read_text())):
                self._take(node)

    def _take(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            self._aliases[node.targets[0].id] = node.value
        elif isinstance(node, ast.ClassDef):
            for line in node.body:
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                    self.fields[node.name, line.target.id] = line
                    self.by_field[line.target.id].append(line)
                    self.classes[node.name].append(line.target.id)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = node.args[0].value
            if isinstance(name, str) and name.startswith("--"):
                self.arguments[name.removeprefix("--")] = node

    def choices(self, name: str, of: str | None) -> set[str]:
        field = name.replace("-", "_")
        declared = [self.fields[of, field]] if (of, field) in self.fields else [] if of else self.by_field[field]
        found = {word for line in declared for word in self._literals(line.annotation)}
        call = self.arguments.get(name)
        for keyword in call.keywords if call else ():
            if keyword.arg == "choices":
                found |= set(_constants(keyword.value))
        return found - {""}

    def _literals(self, annotation: ast.expr, depth: int = 0) -> Iterator[str]:
        for part in ast.walk(annotation):
            if isinstance(part, ast.Subscript) and isinstance(part.value, ast.Name) and part.value.id == "Literal":
                yield from _constants(part.slice)
                names = [name.id for name in ast.walk(part.slice) if isinstance(name, ast.Name)]
                yield from (word for name in names for word in self._alias(name, depth))
            elif isinstance(part, ast.Name):
                yield from self._alias(part.id, depth)

    def _alias(self, name: str, depth: int) -> Iterator[str]:
        if name in self._aliases and depth < 5:
            yield from self._literals(self._aliases[name], depth + 1)

    def bounds(self, name: str, of: str | None) -> list[dict[str, Any]]:
        field = name.replace("-", "_")
        declared = [self.fields[of, field]] if (of, field) in self.fields else [] if of else [
            line for (owner, its), line in self.fields.items() if its == field and owner.endswith("Config")
            and owner != "SpeculativeConfig"
        ]  # fmt: skip
        return [_bounds_of(line.value) for line in declared if line.value is not None]


def _constants(node: ast.expr) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str | int) and not isinstance(part.value, bool):
            yield str(part.value)


def _bounds_of(value: ast.expr) -> dict[str, Any]:
    keywords = value.keywords if isinstance(value, ast.Call) else []
    return {word.arg: ast.literal_eval(word.value) for word in keywords if word.arg in BOUNDS}


def elsewhere(kinds: dict[str, Any], seen: list[Source], of: str | None = None) -> dict[str, Any]:
    found = {name: more for name, kind in kinds.items() if (more := _more(name, kind, seen, of))}
    return dict(sorted(found.items()))


def _more(name: str, kind: dict[str, Any], seen: list[Source], of: str | None) -> dict[str, Any]:
    more: dict[str, Any] = {}
    if "choices" in kind:
        words = set().union(*(source.choices(name, of) for source in seen)) - set(kind["choices"])
        more |= {"choices": sorted(words)} if words else {}
    if "keys" in kind:
        keys = {key for source in seen for key in source.classes[kind["of"]] if not key.startswith("_")}
        more |= {"keys": sorted(keys - set(kind["keys"]))} if keys - set(kind["keys"]) else {}
    mine = {bound: kind[bound] for bound in BOUNDS if bound in kind}
    if mine and any(theirs != mine for source in seen for theirs in source.bounds(name, of)):
        more["bounds"] = False
    return more


def text_of(table: dict[str, Any]) -> str:
    """A line for each option, so that the difference between two versions can be read."""
    lines = []
    for part, value in table.items():
        if part == "elsewhere":
            inner = ",\n".join(f"{json.dumps(name)}: {{\n{_lines(kinds)}\n}}" for name, kinds in value.items())
            lines.append(f'"elsewhere": {{\n{inner}\n}}')
        elif isinstance(value, dict):
            lines.append(f"{json.dumps(part)}: {{\n{_lines(value)}\n}}")
        else:
            lines.append(f"{json.dumps(part)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _lines(kinds: dict[str, Any]) -> str:
    return ",\n".join(f"  {json.dumps(name)}: {json.dumps(kind)}" for name, kind in kinds.items())


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
