"""The arrows of docs/architecture.md: who may import whom. Read from the source, nothing is imported."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "paceline"

# A folder, and the parts of Paceline (or libraries) it must never reach, lazily or not.
FORBIDDEN = {
    "engine": ("torch", "numpy", "transformers", "paceline.runner", "paceline.speculative", "paceline.models",
               "paceline.layers", "paceline.kernels", "paceline.worker", "paceline.server", "paceline.llm",
               "paceline.cli"),
    "runner": ("paceline.engine", "paceline.worker", "paceline.speculative", "paceline.server", "paceline.sequence"),
    "models": ("paceline.engine", "paceline.worker", "paceline.speculative", "paceline.server", "paceline.runner"),
    "layers": ("paceline.engine", "paceline.worker", "paceline.speculative", "paceline.server", "paceline.runner",
               "paceline.models"),
    "kernels": ("paceline.engine", "paceline.worker", "paceline.speculative", "paceline.server", "paceline.runner",
                "paceline.models", "paceline.layers"),
    "speculative": ("paceline.engine", "paceline.worker", "paceline.server", "paceline.sequence"),
    "structured": ("paceline.engine", "paceline.worker", "paceline.runner", "paceline.speculative", "paceline.server",
                   "paceline.models", "paceline.layers", "paceline.sequence"),
    "distributed": ("paceline.engine", "paceline.worker", "paceline.runner", "paceline.speculative", "paceline.server",
                    "paceline.models", "paceline.layers", "paceline.kernels", "paceline.structured"),
    "worker": ("paceline.engine.engine", "paceline.engine.scheduler", "paceline.engine.block_manager",
               "paceline.server", "paceline.llm"),
    "server": ("torch", "paceline.runner", "paceline.speculative", "paceline.models", "paceline.worker"),
    "bench": ("paceline.worker", "paceline.runner", "paceline.speculative", "paceline.server",
              "paceline.engine.scheduler", "paceline.engine.block_manager"),
    "bench/serve": ("torch", "paceline.engine", "paceline.llm", "paceline.models", "paceline.cli",
                    "paceline.bench.page"),
    "bench/page": ("torch", "paceline.engine", "paceline.llm", "paceline.models", "paceline.cli"),
    "tune": ("torch", "paceline.worker", "paceline.runner", "paceline.speculative", "paceline.server",
             "paceline.engine.scheduler", "paceline.engine.block_manager", "paceline.cli"),
    "verify": ("paceline.engine", "paceline.worker", "paceline.runner", "paceline.speculative", "paceline.server",
               "paceline.layers", "paceline.kernels", "paceline.models", "paceline.cli"),
    "runtimes": ("torch", "paceline.engine.engine", "paceline.engine.scheduler", "paceline.engine.block_manager",
                 "paceline.worker", "paceline.runner", "paceline.speculative", "paceline.models", "paceline.cli",
                 "paceline.llm"),
    "deploy": ("paceline.engine", "paceline.worker", "paceline.runner", "paceline.speculative", "paceline.server",
               "paceline.layers", "paceline.kernels", "paceline.models.llama", "paceline.models.loader",
               "paceline.cli", "paceline.llm"),
    "capacity": ("paceline.engine", "paceline.speculative", "paceline.server", "paceline.models.llama",
                 "paceline.worker.worker", "paceline.llm", "paceline.cli"),
    "distill": ("paceline.engine", "paceline.worker", "paceline.runner", "paceline.speculative", "paceline.server"),
}  # fmt: skip
PURE = (
    "config.py", "errors.py", "plan.py", "sampling_params.py", "sampling_limits.py", "request_speculation.py",
    "sequence.py", "text_stream.py", "prompt_lookup.py",
    "structured/constraint.py", "structured/json_schema.py", "structured/params.py", "structured/regex.py",
)  # fmt: skip


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found


def reaches(name: str, forbidden: str) -> bool:
    return name == forbidden or name.startswith(forbidden + ".")


@pytest.mark.parametrize("folder", sorted(FORBIDDEN))
def test_arrows(folder: str) -> None:
    files = sorted((SOURCE / folder).rglob("*.py"))
    assert files
    wrong = [
        f"{path.relative_to(SOURCE)} imports {name}"
        for path in files
        for name in imports(path)
        for forbidden in FORBIDDEN[folder]
        if reaches(name, forbidden)
    ]
    assert not wrong


@pytest.mark.parametrize("name", PURE)
def test_the_words_between_the_rooms_import_no_room(name: str) -> None:
    rooms = ("engine", "worker", "runner", "models", "layers", "kernels", "speculative", "server", "llm", "cli")
    found = imports(SOURCE / name)
    assert not [i for i in found for room in rooms if reaches(i, f"paceline.{room}")]
    assert not [i for i in found if reaches(i, "torch")]
