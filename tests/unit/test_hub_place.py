"""paceline models pull --to: a plain directory, whole or absent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline import hub
from paceline.errors import ConfigurationError

DRAFT = "smollm2-135m-instruct-draft"  # shipped inside the package: nothing is fetched


def fake_hub(monkeypatch: pytest.MonkeyPatch, fail: bool = False) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []

    def snapshot_download(repo_id: str, **options: Any) -> str:
        calls.append({"repo_id": repo_id, **options})
        folder = Path(options["local_dir"])
        (folder / ".cache").mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text("{}")
        if fail:
            raise OSError("connection reset")
        (folder / "model.safetensors").write_text("w")
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    return calls


def test_a_known_model(tmp_path: Path) -> None:
    place = hub.pull_to(DRAFT, tmp_path / "models" / "draft")
    assert (place / "config.json").is_file()
    assert list(place.glob("*.safetensors"))
    assert not place.is_symlink()
    before = {file.name: file.stat().st_mtime_ns for file in place.iterdir()}
    assert hub.pull_to(DRAFT, place) == place  # again: nothing is done
    assert {file.name: file.stat().st_mtime_ns for file in place.iterdir()} == before


def test_a_repository(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = fake_hub(monkeypatch)
    place = hub.pull_to("org/model", tmp_path / "target")
    assert sorted(file.name for file in place.iterdir()) == [
        ".paceline-source.json", "config.json", "model.safetensors",
    ]  # fmt: skip
    assert json.loads((place / ".paceline-source.json").read_text())["source"] == "org/model"
    hub.pull_to("org/model", place)
    assert len(calls) == 1
    assert "*.safetensors" in calls[0]["allow_patterns"]
    with pytest.raises(ConfigurationError, match="holds 'org/model', not 'org/other'"):
        hub.pull_to("org/other", place)


def test_a_download_that_breaks_off_leaves_nothing_and_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_hub(monkeypatch, fail=True)
    with pytest.raises(ConfigurationError, match="connection reset"):
        hub.pull_to("org/model", tmp_path / "target")
    assert not (tmp_path / "target").exists()
    calls = fake_hub(monkeypatch)
    hub.pull_to("org/model", tmp_path / "target")
    assert calls[0]["local_dir"] == tmp_path / ".target.partial"  # where the first try left its files
    assert not (tmp_path / ".target.partial").exists()


def test_an_empty_folder_is_filled_and_another_is_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_hub(monkeypatch)
    (tmp_path / "empty").mkdir()
    assert (hub.pull_to("org/model", tmp_path / "empty") / "config.json").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigurationError, match="something that was not pulled there"):
        hub.pull_to("org/model", tmp_path / "mine")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot be put at"):
        hub.pull_to("org/model", tmp_path / "file" / "model")
