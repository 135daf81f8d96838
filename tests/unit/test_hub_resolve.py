"""From what a user writes to a directory, and what is said when there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from unit.hub_fakes import pulled_models, write_small_gguf

from paceline import hub
from paceline.errors import ConfigurationError
from paceline.hub import repository


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "model" / "model.safetensors").write_bytes(b"")
    return tmp_path / "model"


class FakeHub:
    """Stands for snapshot_download: returns or raises `answer`, keeps what it was asked."""

    def __init__(self) -> None:
        self.answer: str | Exception = ""
        self.calls: list[dict[str, Any]] = []

    def __call__(self, repo_id: str, **options: Any) -> str:
        self.calls.append({"repo_id": repo_id, **options})
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def fake_hub(monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub()
    monkeypatch.setattr("huggingface_hub.snapshot_download", fake)
    return fake


def test_home_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", "~/elsewhere")
    assert hub.paceline_home() == Path.home() / "elsewhere"
    monkeypatch.delenv("PACELINE_HOME")
    assert hub.paceline_home() == Path.home() / ".cache" / "paceline"


def test_home_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigurationError, match="Set PACELINE_HOME"):
        hub.resolve(write_small_gguf(tmp_path / "a.gguf"))


def test_directory_is_itself(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hub.resolve(model) == hub.resolve(str(model)) == model
    monkeypatch.chdir(model.parent)
    assert hub.resolve("model") == model


def test_directory_without_config(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"holds no config\.json\. A Hugging Face"):
        hub.resolve(tmp_path)
    (tmp_path / "weights.gguf").write_bytes(b"")
    with pytest.raises(ConfigurationError, match=r"Give the file itself: '.*weights\.gguf'"):
        hub.resolve(tmp_path)


@pytest.mark.parametrize("name", ["./nothing", "/nothing/here", "~/nothing", "a/b/c", "nothing.gguf"])
def test_missing_path(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"No (directory|GGUF file)"):
        hub.resolve(name)


def test_gguf_is_converted_once_by_content(tmp_path: Path, home: Path) -> None:
    stages: list[str] = []
    first = hub.resolve(write_small_gguf(tmp_path / "a.gguf"), stages.append)
    (tmp_path / "b.gguf").write_bytes((tmp_path / "a.gguf").read_bytes())
    assert hub.resolve(tmp_path / "b.gguf", stages.append) == first
    assert len(stages) == 1
    assert first.parent == home / "models"
    assert hub.resolve(first.name) == first


def test_file_that_is_no_gguf(tmp_path: Path, home: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"not a model")
    with pytest.raises(ConfigurationError, match="cannot be read as a GGUF file"):
        hub.resolve(tmp_path / "a.gguf")
    assert pulled_models() == []


def test_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match="Did you mean 'smollm2-135m-instruct'"):
        hub.resolve("SmolLM2-135M-Instuct")


@pytest.mark.parametrize("function", [hub.resolve, hub.pull])
def test_known_mistake_is_told_before_any_network(function: Any, fake_hub: FakeHub) -> None:
    with pytest.raises(ConfigurationError, match=r"it is 'meta-llama/Llama-3\.2-1B-Instruct'"):
        function("meta-llama/Llama-3.1-1B-Instruct")
    assert fake_hub.calls == []


def test_repository_is_fetched_without_pickles(model: Path, fake_hub: FakeHub) -> None:
    fake_hub.answer = str(model)
    assert hub.resolve("org/name") == model
    (call,) = fake_hub.calls
    assert not any(pattern.endswith((".bin", ".pt", ".pth", ".pkl")) for pattern in call["allow_patterns"])
    assert "*" not in call["allow_patterns"]


def test_repository_without_safetensors(tmp_path: Path, fake_hub: FakeHub) -> None:
    fake_hub.answer = str(tmp_path)
    with pytest.raises(ConfigurationError, match="pickled weights are refused"):
        hub.resolve("org/pickles")


def test_unreachable_hub_says_what_was_tried(fake_hub: FakeHub) -> None:
    fake_hub.answer = ConnectionError("no route to host")
    with pytest.raises(
        ConfigurationError, match=r"'org/far' is not a local directory.*no route to host.*directory's path"
    ):
        hub.resolve("org/far")


def test_unreachable_hub_is_not_needed_for_the_default_model(fake_hub: FakeHub) -> None:
    fake_hub.answer = ConnectionError("no route to host.")
    with pytest.raises(ConfigurationError, match=r"host\. Check .* The name 'smollm2-135m-instruct' needs no hub\."):
        hub.resolve("HuggingFaceTB/SmolLM2-135M-Instruct")


@pytest.mark.parametrize(
    ("name", "is_one"), [("a/b", True), ("a", False), ("a/b/c", False), ("-a/b", False), ("a/", False)]
)
def test_repo_ids(name: str, is_one: bool) -> None:
    assert repository.is_repo_id(name) is is_one
