"""C++ kernels of this package: compiled by the machine's own compiler at first use, kept on disk, loaded by ctypes.

Contract
- `cpu_program()` is the loaded library, or raises NoCompilerError, which says what to install. The machine code lies
  under the cache folder, named by a hash of sources, options, compiler and the processor's features; it is written to
  a name of its own and then renamed, so that processes that compile at once do not meet. Where the folder cannot be
  written the library is compiled for this process alone.
- Options: all of the processor's instructions, products and additions fused where it can, and no reordering of sums:
  results must not depend on how a loop was cut.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import re
import shutil
import subprocess
import tempfile
from contextlib import suppress
from functools import cache
from importlib import resources
from pathlib import Path

logger = logging.getLogger(__name__)

OPTIONS = (
    "-O3", "-std=c++17", "-fPIC", "-shared", "-pthread", "-ffp-contract=fast", "-fno-math-errno", "-Wno-psabi",
)  # fmt: skip
_OWN_PROCESSOR = ("-march=native", "-mcpu=native")  # the second is what some compilers for ARM call it
_COMPILERS = ("c++", "g++", "clang++")
_MAIN = "decoder.cpp"
_SECONDS = 300  # a compiler that takes longer hangs
_DIGEST = hashlib.sha256().digest_size
_SHOWN = 2_000  # characters of a compiler's complaint


class NoCompilerError(RuntimeError):
    """The kernels cannot be compiled here, and why."""


@cache
def cpu_program() -> ctypes.CDLL:
    """The library, compiled if it has to be (about 10 s). Raises NoCompilerError."""
    compiler = _compiler()
    with resources.as_file(resources.files("paceline.kernels").joinpath("cpu")) as folder:
        path = _folder() / f"decoder-{_key(folder, compiler)}.so"
        return _loaded(path) or _compiled(folder / _MAIN, compiler, path)


def _loaded(path: Path) -> ctypes.CDLL | None:
    """None where there is none, or one that was damaged: it is made anew."""
    try:
        content = path.read_bytes()
        # Not left to the loader: a file that was cut short kills the process (SIGBUS) when its pages are touched.
        if hashlib.sha256(content[:-_DIGEST]).digest() != content[-_DIGEST:]:
            return None
        return ctypes.CDLL(str(path))
    except OSError:
        return None


def _compiled(source: Path, compiler: str, path: Path) -> ctypes.CDLL:
    logger.info("Compiling the forward for this CPU with %s; it is kept in %s.", compiler, path.parent)
    with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
        built = Path(folder) / path.name
        _compile(source, compiler, built)
        kept = _keep(built, path)
        return ctypes.CDLL(str(path if kept else built))  # loaded code outlives its file


def _keep(built: Path, path: Path) -> bool:
    """Whether it lies at `path`, its digest behind it (loaders ignore what follows the sections)."""
    partial = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        content = built.read_bytes()
        partial.write_bytes(content + hashlib.sha256(content).digest())
        partial.replace(path)
        return True
    except OSError as error:  # read-only or full: the next process compiles again
        logger.info("The compiled forward was not kept: %s", error)
        with suppress(OSError):
            partial.unlink()
        return False


def _folder() -> Path:
    return Path(os.environ.get("PACELINE_HOME", "~/.cache/paceline")).expanduser() / "kernels"


def _compiler() -> str:
    """$CXX, or the first of the usual names that is there."""
    asked = os.environ.get("CXX", "").strip()
    found = shutil.which(asked) if asked else next(filter(None, map(shutil.which, _COMPILERS)), None)
    if found is not None:
        return found
    raise NoCompilerError(
        f"the C++ compiler that CXX names ('{asked}') is not there" if asked else
        "there is no C++ compiler; install one (Debian, Ubuntu: apt install g++)"
    )  # fmt: skip


def _key(folder: Path, compiler: str) -> str:
    digest = hashlib.sha256()
    for part in (*OPTIONS, _run([compiler, "--version"]), platform.machine(), _features()):
        digest.update(part.encode() + b"\0")
    for file in sorted(folder.iterdir()):
        if file.suffix in (".cpp", ".h"):
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:24]


def _features() -> str:
    """The processor's model and instructions: a cache folder may be shared by machines that differ."""
    try:
        lines = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    kinds = r"^(?:flags|Features|model name|CPU part|isa)\s*:.*$"
    return "\n".join(dict.fromkeys(re.findall(kinds, lines, re.MULTILINE)))


def _compile(source: Path, compiler: str, built: Path) -> None:
    complaint = ""
    for own in _OWN_PROCESSOR:
        try:
            _run([compiler, *OPTIONS, own, str(source), "-o", str(built)])
            return
        except NoCompilerError as error:
            complaint = complaint or str(error)
    raise NoCompilerError(complaint)


def _run(command: list[str]) -> str:
    """What it prints."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoCompilerError(f"{command[0]} cannot be run: {error}") from None
    if done.returncode != 0:
        raise NoCompilerError(f"{command[0]} fails: {done.stderr.strip()[:_SHOWN]}")
    return done.stdout
