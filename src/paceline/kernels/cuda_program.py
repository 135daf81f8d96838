"""CUDA C++ kernels of this package: compiled by NVRTC at first use, kept on disk, launched on torch's current stream.

Triton makes most kernels; what it cannot say (fetching before the wait of a dependent launch, tiles that are no powers
of two) is in `cuda/*.cu`. Needs the package cuda-bindings, which CUDA builds of torch bring.

Contract
- `CudaProgram(file, macros)` compiles for Hopper (sm_90a) and keeps the machine code under the cache folder, named by
  a hash of source, macros and compiler. `launch` is asynchronous, makes no allocation and is safe in a captured graph.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import torch

try:
    from cuda.bindings import driver, nvrtc
except ImportError:
    driver = nvrtc = None

__all__ = ["CudaProgram", "checked", "driver", "multiprocessors", "runs_cuda_programs"]

_ARCHITECTURE = "sm_90a"


@cache
def runs_cuda_programs(device_index: int) -> bool:
    """Whether the device is a Hopper GPU, and the compiler and its bindings are installed."""
    if driver is None or torch.cuda.get_device_capability(device_index) != (9, 0):
        return False
    try:
        checked(nvrtc.nvrtcVersion())
    except RuntimeError:  # bindings without the compiler's library
        return False
    return True


@cache
def multiprocessors(device_index: int) -> int:
    return torch.cuda.get_device_properties(device_index).multi_processor_count


class CudaProgram:
    """One kernel of one source file with one set of macros."""

    def __init__(self, file: str, kernel: str, macros: dict[str, str]) -> None:
        source = "".join(f"#define {name} {value}\n" for name, value in macros.items())
        source += resources.files("paceline.kernels").joinpath("cuda", file).read_text()
        self._code = _machine_code(source, file)
        self._module = checked(driver.cuModuleLoadData(self._code))
        self._function = checked(driver.cuModuleGetFunction(self._module, kernel.encode()))
        self._shared_bytes = 0

    def launch(self, grid: int, threads: int, shared_bytes: int, arguments: list[Any], cluster: int = 1) -> None:
        """Start the kernel behind the one before it, which it may overlap (programmatic dependent launch).

        `arguments`: ctypes values, or bytes that are passed as a structure. `cluster`: programs of a cluster.
        """
        if shared_bytes > self._shared_bytes:
            limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            checked(driver.cuFuncSetAttribute(self._function, limit, shared_bytes))
            self._shared_bytes = shared_bytes
        held = [ctypes.create_string_buffer(a, len(a)) if isinstance(a, bytes) else a for a in arguments]
        pointers = (ctypes.c_void_p * len(held))(*(ctypes.addressof(a) for a in held))
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
        config.sharedMemBytes = shared_bytes
        config.hStream = torch.cuda.current_stream().cuda_stream
        config.attrs = [_dependent()] if cluster == 1 else [_dependent(), _clustered(cluster)]
        config.numAttrs = len(config.attrs)
        checked(driver.cuLaunchKernelEx(config, self._function, ctypes.addressof(pointers), 0))


def checked(answer: tuple[Any, ...]) -> Any:
    """The value of a call of the driver or of NVRTC; an error becomes a RuntimeError that names it."""
    error, *values = answer
    if int(error) != 0:
        raise RuntimeError(f"CUDA: {getattr(error, 'name', error)}")
    return values[0] if len(values) == 1 else values


@cache
def _dependent() -> Any:
    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1
    return attribute


@cache
def _clustered(programs: int) -> Any:
    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = programs, 1, 1
    return attribute


def _machine_code(source: str, name: str) -> bytes:
    version = checked(nvrtc.nvrtcVersion())
    key = hashlib.sha256(f"{_ARCHITECTURE} {version} {source}".encode()).hexdigest()[:24]
    home = Path(os.environ.get("PACELINE_HOME", "~/.cache/paceline")).expanduser()
    path = home / "kernels" / f"{Path(name).stem}-{key}.cubin"
    if path.exists():
        return path.read_bytes()
    code = _compile(source, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_bytes(code)
    partial.replace(path)  # another process may be doing the same
    return code


def _compile(source: str, name: str) -> bytes:
    program = checked(nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), 0, [], []))
    options = [f"--gpu-architecture={_ARCHITECTURE}".encode(), b"--std=c++17"]
    if int(nvrtc.nvrtcCompileProgram(program, len(options), options)[0]) != 0:
        log = b" " * checked(nvrtc.nvrtcGetProgramLogSize(program))
        checked(nvrtc.nvrtcGetProgramLog(program, log))
        raise RuntimeError(f"{name} does not compile:\n{log.decode(errors='replace')}")
    code = b" " * int(checked(nvrtc.nvrtcGetCUBINSize(program)))
    checked(nvrtc.nvrtcGetCUBIN(program, code))  # fills `code`
    checked(nvrtc.nvrtcDestroyProgram(program))
    return code
