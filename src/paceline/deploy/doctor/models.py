"""Is a model directory whole, readable and of a kind that the engine runs? No weight is read."""

from __future__ import annotations

import json
import os
from pathlib import Path

from paceline.deploy.doctor.files import json_problem, safetensors_problem
from paceline.deploy.doctor.findings import Finding, Runtime, error, ok, warning
from paceline.deploy.doctor.system import System
from paceline.errors import PacelineError

_CHECK = "model"
_INDEX = "model.safetensors.index.json"
_AGAIN = "Remove the folder and download the model again."
_PULL = (
    "Has the download Job ended? kubectl logs -l app.kubernetes.io/component=model-download says; see storage.models "
    "of the values."
)


def model_findings(path: Path, system: System, runtime: Runtime = "paceline") -> list[Finding]:
    place = system.path(path)
    try:
        problem = _problem(path, place, runtime)
    except PermissionError as denied:
        problem = error(
            _CHECK,
            f"{path}: {denied.filename} cannot be read by uid {system.uid()}.",
            "The claim belongs to another user: set security.user (fsGroup) to its owner, or change its owner.",
        )
    if problem is not None:
        return [problem]
    size = sum(file.stat().st_size for file in place.glob("*.safetensors"))
    return [ok(_CHECK, f"{path}: {size / 1e9:,.1f} GB of weights"), *_memory(path, size, system)]


def _problem(path: Path, place: Path, runtime: Runtime) -> Finding | None:
    if not place.exists():
        return error(_CHECK, f"{path} does not exist.", _PULL)
    if not place.is_dir():
        return error(_CHECK, f"{path} is no directory.", "Give the model's directory, the one with its config.json.")
    names = set(os.listdir(place))
    if "config.json" not in names:
        there = ", ".join(sorted(names)[:5]) or "nothing"
        return error(_CHECK, f"{path} holds no config.json, but {there}.", f"Is it the folder above? {_PULL}")
    weights = {name for name in names if name.endswith(".safetensors")}
    for name in sorted(names & {"config.json", "tokenizer.json", _INDEX, *weights}):
        if (place / name).exists() and not (place / name).is_file():  # a pipe would be waited for without end
            return error(_CHECK, f"{path}/{name} is no plain file.", _AGAIN)
    missing = sorted(_indexed(place) - weights)
    if missing:
        return error(_CHECK, f"{path} is incomplete: {len(missing)} of its files are missing ({missing[0]} …).", _PULL)
    if not weights:
        return _no_weights(path, names)
    for name in sorted(names & {"config.json", "tokenizer.json", *weights}):
        wrong = (safetensors_problem if name in weights else json_problem)(place / name)
        if wrong is not None:
            return error(_CHECK, f"{path}/{name} {wrong}.", _AGAIN)
    if runtime == "paceline" and (unsupported := _unsupported(place)) is not None:
        return error(_CHECK, f"{path}: {unsupported}", "Choose a model that it runs, or --runtime vllm.")
    if "tokenizer.json" not in names:
        return warning(_CHECK, f"{path} has no tokenizer.json.", "A draft may do without; a served model may not.")
    return None


def _no_weights(path: Path, names: set[str]) -> Finding:
    unfinished = sorted(name for name in names if name.endswith((".incomplete", ".part", ".tmp")))
    pickled = sorted(name for name in names if name.endswith((".bin", ".pt", ".pth", ".ckpt")))
    if pickled and not unfinished:
        pickles = f"{path} holds no safetensors weights, but {pickled[0]}."
        return error(_CHECK, pickles, "Pickled weights are not loaded; convert them.")
    return error(_CHECK, f"{path} holds no weights: its download has not ended, or fetched none.", _PULL)


def _unsupported(place: Path) -> str | None:
    from paceline.models.architecture import read_architecture

    try:
        read_architecture(place)
    except PacelineError as refusal:
        return f"Paceline's engine does not run it: {refusal}"
    except (TypeError, ValueError) as fault:
        return f"Paceline's engine cannot read its config.json: {fault}."
    return None


def _indexed(place: Path) -> set[str]:
    try:
        return set(json.loads((place / _INDEX).read_text(encoding="utf-8"))["weight_map"].values())
    except FileNotFoundError:
        return set()
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return {f"a readable {_INDEX}"}


def _memory(path: Path, size: int, system: System) -> list[Finding]:
    limit = system.memory_limit_bytes()
    if limit is None or system.gpu_devices() or size < limit:
        return []
    return [
        error(
            _CHECK,
            f"{path} has {size / 1e9:,.1f} GB of weights, and the container's memory limit is {limit / 1e9:,.1f} GB.",
            "Raise resources.memory: without a GPU the weights lie in it.",
        )
    ]
