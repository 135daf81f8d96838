"""Tables of costs on disk: `$PACELINE_HOME/costs/<key>.json`, by hardware, models, shapes and version.

A table that cannot be read is measured again; one that cannot be written is no reason to fail.
"""

from __future__ import annotations

import hashlib
import logging
import os
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from tempfile import NamedTemporaryFile

import msgspec

from paceline.config import EngineConfig, ModelConfig
from paceline.engine.calibration import measure_costs, still_fits
from paceline.engine.interfaces import Executor
from paceline.engine.step_costs import StepCosts
from paceline.plan import StepShapes

logger = logging.getLogger(__name__)

FORMAT = 11  # of the tables and of how they are measured


class CostTable(msgspec.Struct):
    """What a file holds."""

    belongs_to: dict[str, object]
    costs: msgspec.Raw  # a StepCosts
    checksum: str  # of the costs: a damaged number is still a number


def step_costs(config: EngineConfig, executor: Executor, folder: Path, *, fresh: bool = False) -> StepCosts:
    """Read from `folder` if it still fits, or measured and kept there. `fresh`: measured in any case."""
    belongs_to = identity(config, executor.shapes())
    path = folder / f"{_key(belongs_to)}.json"
    found = None if fresh else _read(path, belongs_to)
    if found is not None and still_fits(found, config, executor):
        return found
    if found is not None:
        logger.info("The table of costs in %s was measured while the machine was busy; measuring again.", path)
    costs = measure_costs(config, executor)
    _write(path, belongs_to, costs)
    return costs


def identity(config: EngineConfig, shapes: StepShapes) -> dict[str, object]:
    """Everything that a step's time depends on."""
    speculative = config.speculative
    return {
        "format": FORMAT,
        "version": _version(),
        "hardware": shapes.hardware,
        "forward": shapes.forward,
        "target": _model(config.model),
        "draft": _model(config.draft) if config.draft else None,
        "method": speculative.method if speculative else None,
        "acceptance": speculative.acceptance if speculative else None,
        "ranks": [config.tensor_parallel_size, speculative.draft_tensor_parallel_size if speculative else 1],
        "num_speculative_tokens": config.num_speculative_tokens,
        "scheduler": [config.scheduler.max_num_seqs, config.scheduler.max_num_batched_tokens],
        "block_size": config.cache.block_size,
        "captured": msgspec.to_builtins(shapes.forms),
    }


def _model(model: ModelConfig) -> list[object]:
    """The shape decides how long it takes, not the weights: config.json, and how it is held."""
    try:
        shape = hashlib.sha256((model.path / "config.json").read_bytes()).hexdigest()[:16]
    except OSError:
        shape = str(model.path)
    formats = [model.dtype, model.quantization, model.quantize_lm_head, model.kv_cache_dtype, model.head_size]
    return [model.name, shape, model.max_model_len, *formats]


def _version() -> str:
    try:
        return metadata.version("paceline")
    except metadata.PackageNotFoundError:
        return "source"


def _key(belongs_to: dict[str, object]) -> str:
    return hashlib.sha256(msgspec.json.encode(belongs_to)).hexdigest()[:24]


def _read(path: Path, belongs_to: dict[str, object]) -> StepCosts | None:
    try:
        table = msgspec.json.decode(path.read_bytes(), type=CostTable)
        encoded = msgspec.json.format(bytes(table.costs), indent=-1)
        if _key(table.belongs_to) != _key(belongs_to) or _checksum(encoded) != table.checksum:
            return None
        costs: StepCosts = msgspec.json.decode(encoded, type=StepCosts)
    except (OSError, ValueError, RecursionError):  # msgspec's errors are ValueErrors; JSON may be nested without end
        return None
    return costs


def _checksum(encoded: bytes) -> str:
    return hashlib.sha256(encoded).hexdigest()[:24]


def _write(path: Path, belongs_to: dict[str, object], costs: StepCosts) -> None:
    """Whole or not at all, and nothing else left behind."""
    partial: Path | None = None
    encoded = msgspec.json.encode(costs)
    table = CostTable(belongs_to, msgspec.Raw(encoded), _checksum(encoded))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=path.parent, delete=False) as file:
            partial = Path(file.name)
            file.write(msgspec.json.format(msgspec.json.encode(table), indent=1))
        os.replace(partial, path)
    except OSError as error:
        logger.info("The table of costs was not kept: %s", error)
        if partial is not None:
            with suppress(OSError):
                partial.unlink()
