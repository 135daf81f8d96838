"""paceline deploy doctor, on machines that are broken in one way each."""

from __future__ import annotations

import json
import os
import socket
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save

from paceline.cli import main
from paceline.deploy.doctor import CHECKS, Finding, System, Wanted, diagnose
from paceline.deploy.doctor.files import safetensors_problem
from paceline.deploy.doctor.system import Gpu, GpuQueryError

H100 = Gpu("NVIDIA H100 80GB HBM3", 80 * 2**30, 2**30)


CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 32, "hidden_size": 16,
    "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
WEIGHTS = save({"weight": np.zeros(64, np.float32)})


@dataclass(frozen=True, slots=True)
class FakeSystem(System):
    """Files are real, under a temporary root; devices, driver, torch and memory are as told."""

    gpu_list: tuple[Gpu, ...] | str = ()  # a text: what the driver says instead
    torch: tuple[int, str] | Exception = (4, "13.0")
    shm: int | None = 16 * 2**30
    user: int = 10001
    taken_ports: frozenset[int] = field(default_factory=frozenset)

    def uid(self) -> int:
        return self.user

    def gpus(self) -> list[Gpu]:
        if isinstance(self.gpu_list, str):
            raise GpuQueryError(self.gpu_list)
        return list(self.gpu_list)

    def torch_sees_gpus(self) -> tuple[int, str]:
        if isinstance(self.torch, Exception):
            raise self.torch
        return self.torch

    def disk_bytes(self, path: Any) -> tuple[int, int]:
        if self.shm is None:
            raise FileNotFoundError(2, "No such file or directory")
        return self.shm, self.shm

    def port_problem(self, host: str, port: int) -> str | None:
        return "Address already in use" if port in self.taken_ports else None


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("dev", "tmp", "home", "models"):
        (tmp_path / folder).mkdir()
    return tmp_path


def machine(root: Path, num_gpus: int = 4, **more: Any) -> FakeSystem:
    for index in range(num_gpus):
        (root / "dev" / f"nvidia{index}").touch()
    (root / "dev" / "nvidiactl").touch()
    return FakeSystem(**{"root": root, "environment": {"HOME": "/home"}, "gpu_list": (H100,) * num_gpus, **more})


def look(system: System, *only: str, **wanted: Any) -> list[Finding]:
    return diagnose(Wanted(**wanted), system, only)


def wrong(findings: list[Finding]) -> list[str]:
    assert all(finding.action for finding in findings if finding.level != "ok")  # what to do is always said
    return [f"{finding.level}: {finding.message} {finding.action}" for finding in findings if finding.level != "ok"]


def write_model(folder: Path, shards: int = 2) -> Path:
    folder.mkdir()
    names = [f"model-{i}.safetensors" for i in range(shards)]
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text('{"model": {"type": "BPE", "vocab": {"a": 0}}}')
    for name in names:
        (folder / name).write_bytes(WEIGHTS)
    index = {"weight_map": {f"layer.{i}": name for i, name in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def test_a_good_machine(root: Path) -> None:
    write_model(root / "models" / "m")
    findings = look(machine(root), num_gpus=4, models=(Path("/models/m"),))
    assert not wrong(findings)
    assert {finding.check for finding in findings} == set(CHECKS)


@pytest.mark.parametrize(
    ("more", "num_gpus", "asked", "message"),
    [
        ({}, 0, 4, "error: 4 GPUs are asked for, and the container has none"),
        ({"gpu_list": (H100,) * 2, "torch": (2, "13.0")}, 2, 4, "error: 4 GPUs are asked for, and the container has 2"),
        ({"gpu_list": "Driver/library version mismatch"}, 4, 4, "the driver does not answer: Driver/library"),
        ({"torch": (0, "")}, 4, 4, "error: torch is a CPU build"),
        ({"torch": (0, "13.0")}, 4, 4, "error: torch (CUDA 13.0) can use 0 of 4"),
        ({"torch": ImportError("libcudnn.so.9")}, 4, 4, "error: torch cannot be imported: libcudnn.so.9"),
        ({"gpu_list": (H100,) * 3 + (Gpu("H100", 80 * 2**30, 70 * 2**30),)}, 4, 4, "warning: GPU 3: 70 of 80 GiB"),
    ],
)
def test_gpus(more: dict[str, Any], num_gpus: int, asked: int, message: str, root: Path) -> None:
    assert any(message in line for line in wrong(look(machine(root, num_gpus, **more), "gpu", num_gpus=asked)))


def test_no_gpu_and_none_wanted(root: Path) -> None:
    assert not wrong(look(machine(root, 0), "gpu", "shm"))


@pytest.mark.parametrize(
    ("shm", "num_gpus", "message"),
    [
        (64 * 2**20, 4, "error: /dev/shm has 0.06 GiB: NCCL fails"),
        (2**30, 4, "warning: /dev/shm has 1.00 GiB; 16 GiB are safe"),
        (None, 4, "error: there is no /dev/shm"),
        (64 * 2**20, 1, None),
        (16 * 2**30, 4, None),
    ],
)
def test_shared_memory(shm: int | None, num_gpus: int, message: str | None, root: Path) -> None:
    lines = wrong(look(machine(root, num_gpus, shm=shm), "shm", num_gpus=num_gpus))
    assert not lines if message is None else message in lines[0]


def test_folders_that_cannot_be_written(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = machine(root, environment={"HOME": "/home", "TRITON_CACHE_DIR": "/cache/triton", "PACELINE_HOME": "/tmp"})
    assert not wrong(look(system, "permissions"))  # /cache can be made
    refused = {"/home": "Read-only file system", "/": "Permission denied"}
    monkeypatch.setattr(FakeSystem, "can_write", lambda self, folder: refused.get(str(folder)))
    lines = wrong(look(system, "permissions"))
    assert len(lines) == 2
    assert "HOME=/home cannot be written to: Read-only file system (uid 10001)" in lines[0]
    assert "TRITON_CACHE_DIR=/cache/triton cannot be made: /: Permission denied" in lines[1]


def test_root_is_warned_of(root: Path) -> None:
    assert "warning: the server would run as root" in wrong(look(machine(root, user=0), "permissions"))[0]


LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 269060552\n"


def reconfigure(model: Path, **changes: Any) -> None:
    (model / "config.json").write_text(json.dumps(CONFIG | changes))


def drop(model: Path, pattern: str) -> None:
    for file in model.glob(pattern):
        file.unlink()


def pipe(file: Path) -> None:
    file.unlink(missing_ok=True)
    os.mkfifo(file)


def garbled() -> bytes:
    """As long as it says, and no JSON."""
    return (16).to_bytes(8, "little") + b"x" * 16


@pytest.mark.parametrize(
    ("name", "breaks", "message"),
    [
        ("missing", None, "/models/m does not exist"),
        ("a file", lambda m: None, "is no directory"),
        ("no config", lambda m: (m / "config.json").unlink(), "holds no config.json, but"),
        ("not begun", lambda m: drop(m, "*.safetensors"), "2 of its files are missing"),
        ("no weights", lambda m: drop(m, "model*"), "its download has not ended"),
        ("pickled", lambda m: (drop(m, "model*"), (m / "a.bin").touch()), "holds no safetensors weights, but a.bin"),
        ("partly", lambda m: (drop(m, "model*"), (m / "a.bin").touch(), (m / "b.part").touch()), "has not ended"),
        ("a pipe as config", lambda m: pipe(m / "config.json"), "config.json is no plain file"),
        ("a pipe as index", lambda m: pipe(m / "model.safetensors.index.json"), "index.json is no plain file"),
        ("a pipe as weights", lambda m: pipe(m / "model-0.safetensors"), "model-0.safetensors is no plain file"),
        ("a folder as weights", lambda m: (m / "x.safetensors").mkdir(), "x.safetensors is no plain file"),
        ("one shard", lambda m: (m / "model-1.safetensors").unlink(), "1 of its files are missing (model-1"),
        ("broken index", lambda m: (m / "model.safetensors.index.json").write_text("{"), "incomplete"),
        ("empty file", lambda m: (m / "model-0.safetensors").write_text(""), "model-0.safetensors is empty"),
        ("cut off", lambda m: (m / "model-0.safetensors").write_bytes(WEIGHTS[:-1]), "is cut off: "),
        ("cut in its header", lambda m: (m / "model-0.safetensors").write_bytes(WEIGHTS[:20]), "is cut off: 20 bytes"),
        ("too long", lambda m: (m / "model-0.safetensors").write_bytes(WEIGHTS + b"0"), "is damaged"),
        ("garbage", lambda m: (m / "model-0.safetensors").write_bytes(b"\xff" * 999), "is no safetensors file"),
        ("tiny", lambda m: (m / "model-0.safetensors").write_bytes(b"{}"), "is no safetensors file"),
        ("no header", lambda m: (m / "model-0.safetensors").write_bytes(garbled()), "header is not readable"),
        ("LFS weights", lambda m: (m / "model-1.safetensors").write_text(LFS), "model-1.safetensors is a pointer of"),
        ("LFS tokenizer", lambda m: (m / "tokenizer.json").write_text(LFS), "tokenizer.json is a pointer of Git LFS"),
        ("no tokens", lambda m: (m / "tokenizer.json").write_text("{}"), "tokenizer.json holds no vocabulary"),
        ("config cut", lambda m: (m / "config.json").write_text("{bad"), "config.json is not a JSON object"),
        ("config list", lambda m: (m / "config.json").write_text("[]"), "config.json is not a JSON object"),
        ("config {}", lambda m: (m / "config.json").write_text("{}"), "engine does not run it"),
        ("config text", lambda m: reconfigure(m, hidden_size="many"), "cannot read its config.json"),
        ("architecture", lambda m: reconfigure(m, architectures=["MambaForCausalLM"]), "MambaForCausalLM"),
        ("no tokenizer", lambda m: (m / "tokenizer.json").unlink(), "warning: /models/m has no tokenizer.json"),
    ],
)
def test_models(name: str, breaks: Any, message: str, root: Path) -> None:
    place = root / "models" / "m"
    if name == "a file":
        place.write_text("")
    elif breaks is not None:
        breaks(write_model(place))
    lines = wrong(look(machine(root), "model", models=(Path("/models/m"),)))
    assert len(lines) == 1
    assert message in lines[0]


@given(cut=st.integers(0, len(WEIGHTS) - 1))
def test_no_cut_off_file_of_weights_passes(cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.getbasetemp() / "cut.safetensors"
    file.write_bytes(WEIGHTS)
    assert safetensors_problem(file) is None
    file.write_bytes(WEIGHTS[:cut])
    assert safetensors_problem(file) is not None


def test_names_that_no_file_can_have(root: Path) -> None:
    name = "a" * 5000
    system = machine(root, environment={"HOME": f"/{name}"})
    for check, wanted in (("model", {"models": (Path("/models") / name,)}), ("permissions", {})):
        lines = wrong(look(system, check, **wanted))
        assert len(lines) == 1
        assert "name too long" in lines[0].lower()
        assert name not in lines[0]


def test_vllm_runs_more_architectures(root: Path) -> None:
    reconfigure(write_model(root / "models" / "m"), architectures=["MambaForCausalLM"])
    assert not wrong(look(machine(root), "model", models=(Path("/models/m"),), runtime="vllm"))


def test_a_model_that_may_not_be_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(root / "models" / "m")

    def denied(path: Any) -> list[str]:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("os.listdir", denied)
    lines = wrong(look(machine(root), "model", models=(Path("/models/m"),)))
    assert "cannot be read by uid 10001" in lines[0]
    assert "fsGroup" in lines[0]


def test_weights_beyond_the_memory_limit(root: Path) -> None:
    write_model(root / "models" / "m")
    (root / "sys/fs/cgroup").mkdir(parents=True)
    (root / "sys/fs/cgroup/memory.max").write_text("3\n")
    assert "memory limit" in wrong(look(machine(root, 0), "model", models=(Path("/models/m"),)))[0]
    (root / "sys/fs/cgroup/memory.max").write_text("max\n")
    assert not wrong(look(machine(root, 0), "model", models=(Path("/models/m"),)))


def test_ports_and_service_variables(root: Path) -> None:
    system = machine(root, taken_ports=frozenset({8000}), environment={"VLLM_PORT": "tcp://10.0.0.1:80"})
    lines = wrong(look(system, "port", "environment"))
    assert "0.0.0.0:8000 cannot be listened on: Address already in use" in lines[0]
    assert "enableServiceLinks: false" in lines[1]
    assert not wrong(look(system, "port", port=None))
    assert not wrong(look(machine(root, environment={"VLLM_PORT": "8001"}), "environment"))


def test_the_real_machine_answers(tmp_path: Path) -> None:
    """No fakes: whatever this machine is, each question is answered."""
    system = System()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert system.port_problem("127.0.0.1", taken.getsockname()[1])
    assert system.port_problem("127.0.0.1", 0) is None
    assert system.can_write(tmp_path) is None
    assert system.can_write(tmp_path / "none") == "No such file or directory"
    assert not list(tmp_path.iterdir())
    total, free = system.disk_bytes("/")
    assert total >= free > 0
    assert (system.memory_limit_bytes() or 1) > 0
    if not system.gpu_devices():
        with pytest.raises(GpuQueryError):
            System(environment={"PATH": str(tmp_path)}).gpus()


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["paceline", "deploy", "doctor", *words])
    monkeypatch.setenv("COLUMNS", "300")
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_exit_status_and_json(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_model(tmp_path / "m")
    words = ("--only", "model", "--model", str(model), "--json")
    assert run(monkeypatch, *words) == 0
    assert json.loads(capsys.readouterr().out)[0]["level"] == "ok"
    monkeypatch.chdir(tmp_path)
    for relative in ("m", "./m", "../" + tmp_path.name + "/m"):  # from where one stands, as in every tool
        assert run(monkeypatch, "--only", "model", "--model", relative, "--json") == 0
        assert json.loads(capsys.readouterr().out)[0]["message"].startswith(str(Path(relative)))
    (model / "config.json").unlink()
    assert run(monkeypatch, *words) == 1
    assert "config.json" in json.loads(capsys.readouterr().out)[0]["message"]
    assert run(monkeypatch, "--only", "modle") == 2
    assert "Did you mean 'model'" in capsys.readouterr().err
    assert run(monkeypatch, "--only", "model") == 2
    assert run(monkeypatch, "--port", "http") == 2
    assert run(monkeypatch, "--gpus", "-1") == 2
    assert run(monkeypatch, "--wait", "-5") == 2
    assert run(monkeypatch, "--port", "\u0663") == 2
    capsys.readouterr()
    assert run(monkeypatch, "--only", "model", "--model", "") == 2
    assert "--model is empty" in capsys.readouterr().err


def test_waiting_ends_when_the_model_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in the init container, while the download Job is at work."""
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            write_model(tmp_path / "m")

    monkeypatch.setattr("time.sleep", sleep)
    assert run(monkeypatch, "--only", "model", "--model", str(tmp_path / "m"), "--wait", "3600") == 0
    assert len(slept) == 3
    assert "does not exist" in capsys.readouterr().err
    ticks = iter(range(0, 10_000, 7))
    monkeypatch.setattr("time.monotonic", lambda: float(next(ticks)))
    assert run(monkeypatch, "--only", "model", "--model", str(tmp_path / "none"), "--wait", "20") == 1
