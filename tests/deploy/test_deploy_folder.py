"""paceline deploy render --out: what is ours is replaced, all or not at all; what is not ours stays."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from deploy_cases import rendered

from paceline.deploy import swap
from paceline.deploy.folder import KUSTOMIZATION, write_files
from paceline.errors import ConfigurationError

LARGE, SMALL = rendered("smoke-cpu", "kserve", "paceline", True), rendered("smoke-cpu", "kubernetes", "paceline")
MINE = "a: b\n"


def tree(folder: Path) -> dict[str, str]:
    return {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}


def name_also(out: Path, *names: str) -> None:
    path = out / KUSTOMIZATION
    path.write_text(path.read_text().replace("resources:\n", "resources:\n" + "".join(f"- {n}\n" for n in names)))


def put(path: Path, text: str = MINE) -> Path:
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(text)
    return path


FOREIGN: dict[str, Callable[[Path], str]] = {
    "outside": lambda out: f"../{put(out.parent / 'shared' / 'ingress.yaml').parent.name}/ingress.yaml",
    "absolute": lambda out: str(put(out.parent / "elsewhere.yaml")),
    "below": lambda out: str(put(out / "sub" / "mine.yaml").relative_to(out)),
    "no manifest": lambda out: put(out / "notes.txt").name,
    "own": lambda out: put(out / "ingress.yaml").name,
    "a copy of ours": lambda out: put(out / "canary.yaml", (out / "httproute.yaml").read_text()).name,
    "outside, of ours": lambda out: f"../{put(out.parent / 'copy.yaml', (out / 'httproute.yaml').read_text()).name}",
}


@pytest.mark.parametrize("recorded", [False, True], ids=["named", "named and in the record"])
@pytest.mark.parametrize("make", FOREIGN.values(), ids=list(FOREIGN))
def test_what_is_not_ours_stays_and_is_said(make: Callable[[Path], str], recorded: bool, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_files(LARGE, out)
    name = make(out)
    name_also(out, name)
    before = tree(tmp_path)
    if recorded and name not in ("canary.yaml",):  # a record that somebody has changed
        path = out / KUSTOMIZATION
        path.write_text(path.read_text().replace("rendering: ", f"rendering: {name}, "))
    notes = write_files(SMALL, out).notes
    after = tree(tmp_path)
    assert not (out / "httproute.yaml").exists()
    ours = {f"out/{file}" for file in (*LARGE.files(), *SMALL.files(), KUSTOMIZATION)}
    assert {f: t for f, t in before.items() if f not in ours} == {f: t for f, t in after.items() if f not in ours}
    assert len(notes) == 1
    assert name in notes[0]
    assert not write_files(SMALL, out).notes


@pytest.mark.parametrize("with_kustomization", [False, True])
@pytest.mark.parametrize("kind", ["file", "link", "folder", "pipe", "its header taken away"])
def test_what_is_not_ours_is_not_replaced(kind: str, with_kustomization: bool, tmp_path: Path) -> None:
    out, own = tmp_path / "out", tmp_path / "own.yaml"
    if with_kustomization:
        write_files(LARGE, out)
    out.mkdir(exist_ok=True)
    own.write_text(MINE)
    target = out / "service.yaml"
    target.unlink(missing_ok=True)
    make: dict[str, Callable[[], Any]] = {
        "file": lambda: target.write_text(MINE),
        "link": lambda: target.symlink_to(own),
        "folder": target.mkdir,
        "pipe": lambda: os.mkfifo(target),
        "its header taken away": lambda: target.write_text(yaml.safe_dump(SMALL.files()["service.yaml"])),
    }
    make[kind]()
    before = tree(out)
    with pytest.raises(ConfigurationError, match=r"Nothing was written: .*service\.yaml is "):
        write_files(SMALL, out)
    assert tree(out) == before
    assert own.read_text() == MINE


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text + "[\n", "not valid YAML: line"),
        (lambda text: text[: text.index("resources:")] + "resources: 5\n", "resources are no list"),
        (lambda text: text + "patches: []\n", "has patches, which a rendering would take away"),
        (lambda text: "resources: [a.yaml]\n", "is not from"),
        (lambda text: text + "x: &a [*a]\n", "holds itself"),
    ],
)
def test_a_kustomization_that_was_changed(change: Callable[[str], str], message: str, tmp_path: Path) -> None:
    write_files(LARGE, tmp_path)
    path = tmp_path / KUSTOMIZATION
    path.write_text(change(path.read_text()))
    before = tree(tmp_path)
    with pytest.raises(ConfigurationError, match=f"Nothing was written: .*{message}"):
        write_files(SMALL, tmp_path)
    assert tree(tmp_path) == before


NUM_CHANGES = len(SMALL.files()) + 1


@pytest.mark.parametrize("which", range(NUM_CHANGES))
@pytest.mark.parametrize("fault", [PermissionError(1, "Operation not permitted"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("is_new", [False, True])
def test_a_rendering_is_whole_or_not_at_all(
    which: int, fault: BaseException, is_new: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "a" / "out"
    if not is_new:
        write_files(LARGE, out)
    before, left, real = tree(tmp_path), [which], os.replace

    def replace(source: Path, target: Path) -> None:
        left[0] -= 1
        if left[0] == -1:
            raise fault
        real(source, target)

    monkeypatch.setattr(swap.os, "replace", replace)
    expected = ConfigurationError if isinstance(fault, OSError) else type(fault)
    with pytest.raises(expected) as raised:
        write_files(SMALL, out)
    assert not isinstance(fault, OSError) or str(raised.value).startswith("Nothing was written")
    assert tree(tmp_path) == before
    assert is_new is not (tmp_path / "a").exists()
    monkeypatch.undo()
    write_files(SMALL, out)
    assert tree(out).keys() == {*SMALL.files(), KUSTOMIZATION}


def test_what_could_not_be_taken_back_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(LARGE, tmp_path)
    before, calls, real = tree(tmp_path), [0], os.replace

    def replace(source: Path, target: Path) -> None:
        calls[0] += 1
        if calls[0] > 2:
            raise OSError(5, "Input/output error", str(source), None, str(target))
        real(source, target)

    monkeypatch.setattr(swap.os, "replace", replace)
    with pytest.raises(ConfigurationError, match="half written") as raised:
        write_files(SMALL, tmp_path)
    changed = [name for name, text in before.items() if tree(tmp_path).get(name) != text]
    assert changed or [name for name in tree(tmp_path) if name not in before and "/" not in name]
    for name in changed:
        assert name in str(raised.value)
    copies = next(tmp_path.glob(".paceline-render-*"))
    assert {file.name for file in copies.glob("*.before")} >= {f"{name}.before" for name in changed}


@pytest.mark.skipif(shutil.which("chattr") is None, reason="chattr is not installed")
@pytest.mark.parametrize("name", ["service.yaml", "httproute.yaml", KUSTOMIZATION])  # replaced, removed, and the last
def test_a_file_that_may_not_be_changed(name: str, tmp_path: Path) -> None:
    write_files(LARGE, tmp_path)
    before = tree(tmp_path)
    if subprocess.run(["chattr", "+i", str(tmp_path / name)], capture_output=True).returncode != 0:
        pytest.skip("this file system, or this user, cannot make a file immutable")
    try:
        with pytest.raises(ConfigurationError, match="Nothing was written"):
            write_files(SMALL, tmp_path)
        assert tree(tmp_path) == before
    finally:
        subprocess.run(["chattr", "-i", str(tmp_path / name)], check=True)


def test_a_name_that_is_too_long(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"Nothing was written.*too long"):
        write_files(SMALL, tmp_path / ("a" * 5000))
