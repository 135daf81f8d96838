"""Compiling the C++ forward: found again, made anew where damaged, done without where it cannot be."""

from __future__ import annotations

import ctypes
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.kernels import cpu_program as program
from paceline.kernels.cpu_program import NoCompilerError, cpu_program
from paceline.models import native

_LIBRARY = 'extern "C" int paceline_answer() { return 42; }\n'


@pytest.fixture(autouse=True)
def small_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Compiling takes a moment, and lands in a folder of this test's own."""
    home, folder = tmp_path / "home", tmp_path / "package" / "cpu"
    folder.mkdir(parents=True)
    (folder / "decoder.cpp").write_text(_LIBRARY)
    monkeypatch.setenv("PACELINE_HOME", str(home))
    monkeypatch.setattr(program.resources, "files", lambda package: folder.parent)
    cpu_program.cache_clear()
    native._compiles.cache_clear()
    yield home / "kernels"
    cpu_program.cache_clear()
    native._compiles.cache_clear()


def compiled() -> ctypes.CDLL:
    cpu_program.cache_clear()
    try:
        return cpu_program()
    except NoCompilerError:
        pytest.skip("no C++ compiler here")


def test_compiled_once_and_found_again(small_source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiled().paceline_answer() == 42
    (file,) = small_source.iterdir()
    assert file.name.startswith("decoder-")
    monkeypatch.setattr(program, "_compile", lambda *_: pytest.fail("compiled again"))
    assert compiled().paceline_answer() == 42


def test_another_source_is_another_file(small_source: Path, tmp_path: Path) -> None:
    compiled()
    (tmp_path / "package" / "cpu" / "more.h").write_text("// changed\n")
    assert compiled().paceline_answer() == 42
    assert len(list(small_source.iterdir())) == 2


def test_a_damaged_file_is_made_anew(small_source: Path, tmp_path: Path) -> None:
    compiler = program._compiler() if _has_compiler() else pytest.skip("no C++ compiler here")
    small_source.mkdir(parents=True)
    path = small_source / f"decoder-{program._key(tmp_path / 'package' / 'cpu', compiler)}.so"
    path.write_bytes(b"not a library")
    assert compiled().paceline_answer() == 42
    assert path.stat().st_size > 1000


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.6, 0.99])
def test_a_file_that_was_cut_short_is_not_loaded(small_source: Path, share: float) -> None:
    """Some such files kill the process that loads them, so that is asked of the check and not of the loader."""
    compiled()
    (file,) = small_source.iterdir()
    whole = file.read_bytes()
    file.unlink()  # its pages are in use
    file.write_bytes(whole[: int(len(whole) * share)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program.ctypes, "CDLL", lambda path: pytest.fail("loaded a damaged file"))
        assert program._loaded(file) is None
    assert compiled().paceline_answer() == 42
    assert file.stat().st_size == len(whole)


def test_a_damaged_file_that_cannot_be_replaced_is_not_loaded(
    small_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = program._compiler() if _has_compiler() else pytest.skip("no C++ compiler here")
    small_source.mkdir(parents=True)  # never loaded before: the loader would find it again by its name
    path = small_source / f"decoder-{program._key(tmp_path / 'package' / 'cpu', compiler)}.so"
    path.write_bytes(b"not a library")

    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert compiled().paceline_answer() == 42


def test_a_folder_that_cannot_be_written_is_done_without(small_source: Path) -> None:
    small_source.parent.mkdir()
    small_source.write_text("a file where the folder would be, so that even root cannot write there")
    assert compiled().paceline_answer() == 42


def test_two_processes_compile_at_once(small_source: Path, tmp_path: Path) -> None:
    compiled()
    for file in small_source.iterdir():
        file.unlink()
    code = (
        "from paceline.kernels import cpu_program as p; from pathlib import Path\n"
        f"p.resources.files = lambda package: Path({str(tmp_path / 'package')!r})\n"
        "print(p.cpu_program().paceline_answer())"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate(timeout=120)[0] for process in processes] == ["42\n", "42\n"]
    assert [file.suffix for file in small_source.iterdir()] == [".so"]


@pytest.mark.parametrize(("variable", "value", "says"), [
    ("PATH", "/nowhere", "install one"), ("CXX", "no-such-compiler", "CXX names ('no-such-compiler')"),
])  # fmt: skip
def test_without_a_compiler_the_log_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, variable: str, value: str, says: str
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv(variable, value)
    with caplog.at_level(logging.WARNING):
        assert not native._compiles()
        assert not native._compiles()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert says in caplog.text


def test_a_compiler_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken++"
    broken.write_text("#!/bin/sh\n[ \"$1\" = --version ] && exit 0\necho 'the disk is on fire' >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(NoCompilerError, match="the disk is on fire"):
        cpu_program()


def _has_compiler() -> bool:
    try:
        program._compiler()
    except NoCompilerError:
        return False
    return os.name == "posix"
