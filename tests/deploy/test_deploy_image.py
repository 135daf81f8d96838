"""The Containerfiles: linted, and what they promise is there. No container engine is needed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "deploy" / "image").glob("Containerfile.*"))
each_file = pytest.mark.parametrize("file", FILES, ids=lambda file: file.suffix[1:])


def instructions(file: Path) -> list[tuple[str, str]]:
    """(INSTRUCTION, rest), comments gone and continuation lines joined."""
    lines = [line for line in file.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    words = [line.strip().split(maxsplit=1) for line in joined.splitlines() if line.strip()]
    return [(word[0], " ".join(word[1].split())) for word in words]


def last_stage(file: Path) -> list[tuple[str, str]]:
    found = instructions(file)
    start = max(index for index, (name, _) in enumerate(found) if name == "FROM")
    return found[start:]


def test_both_images_are_there() -> None:
    assert [file.suffix for file in FILES] == [".cpu", ".cuda"]


@each_file
def test_hadolint(file: Path) -> None:
    beside = Path(sys.executable).with_name("hadolint")
    tool = str(beside) if beside.is_file() else shutil.which("hadolint")
    if tool is None:
        pytest.skip("hadolint is not installed")
    done = subprocess.run([tool, "--failure-threshold", "style", str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@each_file
def test_two_stages_and_no_root(file: Path) -> None:
    found = instructions(file)
    assert [name for name, _ in found].count("FROM") == 2
    assert all(":" in rest and "latest" not in rest for name, rest in found if name == "FROM")
    stage = last_stage(file)
    names = [name for name, _ in stage]
    user = dict(stage)["USER"]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)  # a number: runAsNonRoot cannot judge a name
    assert not {"RUN", "COPY", "ADD"} & set(names[names.index("USER") :])
    copied = [rest for name, rest in stage if name == "COPY"]
    assert copied == ["--from=build /opt/paceline /opt/paceline"]  # no sources, no pip cache, no build tools
    assert not [rest for _, rest in found if re.search(r"(token|password|secret)\s*=", rest, re.IGNORECASE)]
    assert "ADD" not in [name for name, _ in found]


@each_file
def test_what_is_copied_is_in_the_repository_and_in_the_context(file: Path) -> None:
    sources = {
        word
        for name, rest in instructions(file)
        if name == "COPY" and not rest.startswith("--from")
        for word in rest.split()[:-1]
    }
    assert {"pyproject.toml", "src"} <= sources
    admitted = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert all((ROOT / source).exists() for source in sources)
    assert sources <= admitted
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {project["readme"], *project["license-files"]} <= sources  # the build reads them
    entry = json.loads(dict(last_stage(file))["ENTRYPOINT"])
    assert entry[0] in project["scripts"]


@each_file
def test_the_user_is_the_manifests(file: Path) -> None:
    from paceline.deploy.pod import HOME
    from paceline.deploy.values import Security

    assert dict(last_stage(file))["USER"].partition(":")[0] == str(Security().user)
    assert f"HOME={HOME}" in " ".join(rest for name, rest in last_stage(file) if name == "ENV")


class _Health(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@each_file
@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_the_health_check_runs(file: Path, status: int, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The very command, against a server that is well, and one whose engine has died."""
    text = dict(last_stage(file))["HEALTHCHECK"].partition("CMD ")[2]
    monkeypatch.setattr(_Health, "status", status)
    with HTTPServer(("127.0.0.1", 0), _Health) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command = [word.replace(":8000/", f":{server.server_port}/") for word in json.loads(text)]
        done = subprocess.run([sys.executable, *command[1:]], capture_output=True, timeout=30)
        server.shutdown()
    assert min(done.returncode, 1) == code


@pytest.mark.parametrize(("kind", "compiler"), [("cpu", "g++"), ("cuda", "gcc")])
def test_what_is_compiled_at_the_first_run_finds_a_compiler(kind: str, compiler: str) -> None:
    (file,) = (file for file in FILES if file.suffix == f".{kind}")
    (installed,) = (text for name, text in last_stage(file) if name == "RUN" and "apt-get install" in text)
    assert compiler in installed.split()
