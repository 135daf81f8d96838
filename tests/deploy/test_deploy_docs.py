"""docs/kubernetes.md: its offline commands run, its values are values, and every value is on it."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from deploy_cases import IMAGE, rendered
from pydantic import BaseModel

from paceline.cli import main
from paceline.deploy.folder import write_files
from paceline.deploy.values import Values
from paceline.deploy.values_file import _model_of, merge, parse_values

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "kubernetes.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_commands_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the order of the page, in one folder; what needs a cluster or an engine is left out."""
    pytest.importorskip("kubernetes_validate")
    monkeypatch.chdir(tmp_path)
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    commands = [line for line in lines if line.startswith("paceline deploy ")]
    assert len(commands) >= 10
    for line in commands:
        words = shlex.split(line, comments=True)
        target = words[words.index(">") + 1] if ">" in words else None
        monkeypatch.setattr(sys, "argv", words[: words.index(">")] if target else words)
        with pytest.raises(SystemExit) as ended:
            main()
        out = capsys.readouterr().out
        assert not ended.value.code, line
        if target:
            (tmp_path / target).write_text(out)


def test_the_snippets_are_values() -> None:
    base = {"name": "m", "namespace": "n", "image": IMAGE, "model": {"source": "a/b"}}
    values = [
        snippet for block in blocks("yaml") if "kustomization" not in block for snippet in [yaml.safe_load(block)]
    ]
    assert len(values) >= 2
    for snippet in values:
        parse_values(merge(base, snippet), "the page")


def keys(kind: type[BaseModel]) -> Iterator[str]:
    for name, field in kind.model_fields.items():
        yield name
        part = _model_of(field.annotation)
        if part is not None:
            yield from keys(part)


def test_every_value_is_on_the_page() -> None:
    tolerations = {"operator", "value", "effect"}  # Kubernetes' own
    table = PAGE[PAGE.index("## Values") : PAGE.index("## What every manifest has")]
    assert not [name for name in {*keys(Values)} - tolerations if not re.search(rf"\b{name}\b", table)]


def test_an_overlay_sits_on_top(tmp_path: Path) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    write_files(rendered("smoke-cpu", "kserve", "paceline"), tmp_path / "llama")
    overlay = next(block for block in blocks("yaml") if "kustomization" in block)
    (tmp_path / "production").mkdir()
    (tmp_path / "production" / "kustomization.yaml").write_text(overlay)
    done = subprocess.run(
        ["kubectl", "kustomize", str(tmp_path / "production")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    built: list[Any] = list(yaml.safe_load_all(done.stdout))
    assert len(built) == len(rendered("smoke-cpu", "kserve", "paceline").manifests)
    service = next(content for content in built if content["kind"] == "InferenceService")
    assert service["spec"]["predictor"]["topologySpreadConstraints"] == []
