"""The checks, by name; each says what is so, and where that is wrong, what to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from paceline.deploy.doctor.findings import Finding, Wanted, error, ok, warning
from paceline.deploy.doctor.models import model_findings
from paceline.deploy.doctor.system import GpuQueryError, System
from paceline.deploy.secrecy import redacted

Check = Callable[[Wanted, System], list[Finding]]

_RUNTIME_PORTS = ("VLLM_PORT", "PACELINE_PORT")
_TAKEN_SHARE = 0.1  # of a GPU's memory; a driver alone takes less


def diagnose(wanted: Wanted, system: System, only: Sequence[str] = ()) -> list[Finding]:
    """`only` names checks of CHECKS; without it all are made."""
    wished = {name: check for name, check in CHECKS.items() if not only or name in only}
    found = [finding for name, check in wished.items() for finding in _look(name, check, wanted, system)]
    return [replace(finding, message=redacted(finding.message)) for finding in found]


def _look(name: str, check: Check, wanted: Wanted, system: System) -> list[Finding]:
    try:
        return check(wanted, system)
    except OSError as fault:  # a name that no file can have, a disk that fails
        what = str(fault.filename or "")
        shown = f"{what[:60]}… ({len(what)} characters)" if len(what) > 200 else what
        return [
            error(
                name, f"could not look: {shown}: {fault.strerror or fault}.", "Is the path right, and its volume sound?"
            )
        ]


def gpu_findings(wanted: Wanted, system: System) -> list[Finding]:
    devices = system.gpu_devices()
    if not devices:
        if not wanted.num_gpus:
            return [ok("gpu", "no GPU here, and none asked for: the CPU is used")]
        return [
            error(
                "gpu",
                f"{wanted.num_gpus} GPUs are asked for, and the container has none.",
                "Does the pod's container ask for nvidia.com/gpu, and does the node run NVIDIA's device plugin? "
                "kubectl describe node shows how many it offers.",
            )
        ]
    try:
        gpus = system.gpus()
    except GpuQueryError as fault:
        return [
            error(
                "gpu",
                f"the container has {len(devices)} GPU devices, and the driver does not answer: {fault}.",
                "NVIDIA_DRIVER_CAPABILITIES must hold compute,utility; an Xid error in the node's log means that the "
                "GPU needs a reset.",
            )
        ]
    found = [ok("gpu", f"{len(gpus)} x {gpus[0].name}, {gpus[0].memory_bytes / 2**30:.0f} GiB each")] if gpus else []
    if wanted.num_gpus is not None and len(gpus) < wanted.num_gpus:
        found = [
            error(
                "gpu",
                f"{wanted.num_gpus} GPUs are asked for, and the container has {len(gpus)}.",
                "Set resources.gpus (or leave it out) so that it equals tensor_parallel_size.",
            )
        ]
    for index, gpu in enumerate(gpus):
        if gpu.used_bytes > _TAKEN_SHARE * gpu.memory_bytes:
            taken = f"{gpu.used_bytes / 2**30:.0f} of {gpu.memory_bytes / 2**30:.0f} GiB"
            found.append(
                warning(
                    "gpu",
                    f"GPU {index}: {taken} are taken already.",
                    "Another process uses it (or this server runs); lower gpu_memory_utilization or free it.",
                )
            )
    return found + _torch(len(gpus), system)


def _torch(num_gpus: int, system: System) -> list[Finding]:
    try:
        seen, built_for = system.torch_sees_gpus()
    except (ImportError, RuntimeError, OSError) as fault:
        return [error("gpu", f"torch cannot be imported: {fault}.", "Build the image anew; see deploy/image.")]
    if not built_for:
        return [
            error(
                "gpu",
                "torch is a CPU build, and the container has GPUs.",
                "Use the image built from deploy/image/Containerfile.cuda.",
            )
        ]
    if seen < num_gpus:
        return [
            error(
                "gpu",
                f"torch (CUDA {built_for}) can use {seen} of {num_gpus} GPUs.",
                "The node's driver may be older than this CUDA needs; nvidia-smi prints what it supports. Is "
                "CUDA_VISIBLE_DEVICES set?",
            )
        ]
    return [ok("gpu", f"torch (CUDA {built_for}) can use {'all of them' if seen > 1 else 'it'}")]


def shared_memory_findings(wanted: Wanted, system: System) -> list[Finding]:
    try:
        total, _ = system.disk_bytes("/dev/shm")
    except OSError:
        return [error("shm", "there is no /dev/shm.", "Mount an emptyDir with medium: Memory there.")]
    several = (wanted.num_gpus or len(system.gpu_devices())) > 1
    size = f"/dev/shm has {total / 2**30:.2f} GiB"
    advice = "Mount an emptyDir with medium: Memory and sizeLimit: 16Gi there; a container gets 64 MB by itself."
    if several and total < wanted.shm_bytes // 16:
        return [error("shm", f"{size}: NCCL fails.", advice)]
    if several and total < wanted.shm_bytes:
        return [warning("shm", f"{size}; {wanted.shm_bytes / 2**30:.0f} GiB are safe with several GPUs.", advice)]
    return [ok("shm", size)]


def permission_findings(wanted: Wanted, system: System) -> list[Finding]:
    found = []
    for name, folder in _writable_folders(system).items():
        if not system.path(folder).is_dir():
            parent = next((p for p in folder.parents if system.path(p).is_dir()), Path("/"))
            problem = system.can_write(parent)
            if problem is not None:
                found.append(_unwritable(name, folder, f"cannot be made: {parent}: {problem}", system))
        elif (problem := system.can_write(folder)) is not None:
            found.append(_unwritable(name, folder, f"cannot be written to: {problem}", system))
    if system.uid() == 0:
        found.append(
            warning("permissions", "the server would run as root.", "Set securityContext.runAsNonRoot and runAsUser.")
        )
    return found or [ok("permissions", f"uid {system.uid()}; home, temporary folder and caches can be written to")]


def _writable_folders(system: System) -> dict[str, Path]:
    environment = system.environment
    folders = {"HOME": environment.get("HOME") or "/", "TMPDIR": environment.get("TMPDIR") or "/tmp"}
    for name in ("PACELINE_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH", "VLLM_CACHE_ROOT"):
        if environment.get(name):
            folders[name] = environment[name]
    return {name: Path(folder) for name, folder in folders.items()}


def _unwritable(name: str, folder: Path, why: str, system: System) -> Finding:
    return error(
        "permissions",
        f"{name}={folder} {why} (uid {system.uid()}).",
        "Mount a volume there; set securityContext.fsGroup to the pod's group, so that claims belong to it.",
    )


def models_findings(wanted: Wanted, system: System) -> list[Finding]:
    return [finding for path in wanted.models for finding in model_findings(path, system, wanted.runtime)]


def port_findings(wanted: Wanted, system: System) -> list[Finding]:
    if wanted.port is None:
        return []
    problem = system.port_problem(wanted.host, wanted.port)
    if problem is None:
        return [ok("port", f"{wanted.host}:{wanted.port} is free")]
    return [
        error(
            "port",
            f"{wanted.host}:{wanted.port} cannot be listened on: {problem}.",
            "Does the server run already (then --port none)? Another container of the pod has the same ports: choose "
            "one that is free, above 1023 for a user who is not root.",
        )
    ]


def environment_findings(wanted: Wanted, system: System) -> list[Finding]:
    found = [
        error(
            "environment",
            f"{name}={value}: Kubernetes has set it for a Service named '{name.removesuffix('_PORT').lower()}', and "
            "the runtime takes it for its own setting.",
            "Set enableServiceLinks: false in the pod, and name the Service otherwise.",
        )
        for name in _RUNTIME_PORTS
        if (value := system.environment.get(name, "")).startswith(("tcp://", "udp://"))
    ]
    return found or [ok("environment", "no Service has set a variable of the runtime")]


CHECKS: dict[str, Check] = {
    "gpu": gpu_findings,
    "shm": shared_memory_findings,
    "permissions": permission_findings,
    "model": models_findings,
    "port": port_findings,
    "environment": environment_findings,
}
