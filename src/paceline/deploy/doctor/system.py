"""The machine as the doctor sees it: files under a root, environment, GPUs, ports. Nothing is changed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Gpu:
    name: str
    memory_bytes: int
    used_bytes: int


class GpuQueryError(Exception):
    """The driver is there and does not answer; the message is its own."""


@dataclass(frozen=True, slots=True)
class System:
    """`root` is where files are looked for; / outside of tests."""

    root: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def path(self, path: Path | str) -> Path:
        """What is relative begins at the working folder, as everywhere."""
        return self.root / os.path.abspath(path).lstrip("/")

    def uid(self) -> int:
        return os.getuid()

    def gpu_devices(self) -> list[str]:
        """Device files of NVIDIA GPUs: what the container runtime has put into the pod."""
        devices = self.path("/dev").glob("nvidia[0-9]*")
        return sorted(device.name for device in devices)

    def gpus(self) -> list[Gpu]:
        """As the driver reports them. Raises GpuQueryError."""
        tool = shutil.which("nvidia-smi", path=self.environment.get("PATH"))
        if tool is None:
            raise GpuQueryError("nvidia-smi is not in the container")
        query = "--query-gpu=name,memory.total,memory.used"
        try:
            done = subprocess.run(
                [tool, query, "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=60
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise GpuQueryError(str(error)) from None
        if done.returncode != 0:
            raise GpuQueryError(" ".join((done.stdout + done.stderr).split()) or f"status {done.returncode}")
        rows = [line.split(", ") for line in done.stdout.splitlines() if line.strip()]
        return [Gpu(name, int(total) * 2**20, int(used) * 2**20) for name, total, used in rows]

    def torch_sees_gpus(self) -> tuple[int, str]:
        """How many GPUs this Paceline's torch can use, and the CUDA version it was built for ('' for a CPU build)."""
        import torch

        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        return count, torch.version.cuda or ""

    def disk_bytes(self, path: Path | str) -> tuple[int, int]:
        """Total and free, of the file system that holds `path`."""
        usage = shutil.disk_usage(self.path(path))
        return usage.total, usage.free

    def memory_limit_bytes(self) -> int | None:
        """Of the container (cgroup v2, then v1); None without one."""
        for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
            try:
                text = self.path(name).read_text().strip()
            except OSError:
                continue
            return int(text) if text.isdigit() and int(text) < 2**60 else None
        return None

    def can_write(self, folder: Path | str) -> str | None:
        """None, or why not: tried with a file, since modes, read-only mounts and quotas all have a say."""
        place = self.path(folder)
        try:
            with tempfile.NamedTemporaryFile(dir=place, prefix=".paceline-doctor-"):
                return None
        except OSError as error:
            return error.strerror or str(error)

    def port_problem(self, host: str, port: int) -> str | None:
        """None, or why the port cannot be listened on."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            socket.create_server((host, port), family=family).close()
        except OSError as error:
            return error.strerror or str(error)
        return None
