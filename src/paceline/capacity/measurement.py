"""A JSON document of `paceline bench offline`, read as what a prediction is held against."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.bench.bounds import Bounds
from paceline.bench.files import read_text
from paceline.capacity.hardware import Gpu
from paceline.capacity.pair import PlannedModel, read_model
from paceline.capacity.run_relations import check_document, median_run, number
from paceline.errors import ConfigurationError

_RANKS = Bounds(1, 1024)
_MILLISECONDS = Bounds(1e-6, 1e12)
_PART = Bounds(1e-6, 1e12, or_zero=True)
_NAMES = {  # as drivers spell them
    "NVIDIA H100 80GB HBM3": "h100-sxm",
    "NVIDIA H100 PCIe": "h100-pcie",
    "NVIDIA H100 NVL": "h100-nvl",
    "NVIDIA H200": "h200",
    "NVIDIA B200": "b200",
    "NVIDIA A100-SXM4-80GB": "a100-80",
    "NVIDIA A100-SXM4-40GB": "a100-40",
    "NVIDIA L40S": "l40s",
    "NVIDIA L4": "l4",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCase:
    """One batch and K; seconds of a mean step and of its parts."""

    batch: int
    k: int
    has_draft: bool
    tokens_per_second: float
    tokens_per_pass: float  # of passes with K drafts
    step: float | None  # of full steps
    draft: float
    verify: float
    num_steps: int | None = None  # of the decode phase, its tail included


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    source: str
    date: str
    command: str
    commit: str | None
    gpu: Gpu
    bandwidth: float  # bytes a second, as that run measured it
    target: PlannedModel
    draft: PlannedModel | None
    input_len: int
    output_len: int
    tp: int
    draft_tp: int
    is_random: bool
    cases: tuple[MeasuredCase, ...]
    configurations: tuple[Mapping[str, str], ...]

    @property
    def batches(self) -> list[int]:
        return sorted({case.batch for case in self.cases})


def read_measurement(path: Path, gpus: Mapping[str, Gpu], gpu: Gpu | None = None) -> Measurement:
    """`gpu` None: the one that the document names. Raises ConfigurationError where it is of another kind."""
    content = _document(path)
    try:
        return _parse(content, path, gpus, gpu)
    except KeyError as error:
        raise ConfigurationError(
            f"--calibration '{path}' lacks {error}: it must be what 'paceline bench offline --out' writes."
        ) from None
    except (TypeError, IndexError, AttributeError) as error:
        raise ConfigurationError(
            f"--calibration '{path}' is not as 'paceline bench offline --out' writes it: {error}."
        ) from None


def _document(path: Path) -> dict[str, Any]:
    text = read_text(path, "--calibration").strip()
    if not text:
        raise ConfigurationError(f"--calibration '{path}' cannot be read as JSON: it is empty.")
    try:
        content = json.loads(text if text.startswith("{\n") else text.splitlines()[-1], parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"--calibration '{path}' cannot be read as JSON: {error}.") from None
    if not isinstance(content, dict) or content.get("benchmark") != "offline":
        raise ConfigurationError(
            f"--calibration '{path}' is no document of 'paceline bench offline': its field benchmark is not 'offline'."
        )
    return content


def _no_number(word: str) -> float:
    raise ValueError(f"it holds {word}, which is no finite number")


def _parse(content: dict[str, Any], path: Path, gpus: Mapping[str, Gpu], gpu: Gpu | None) -> Measurement:
    where = f"--calibration '{path}'"
    device = content["hardware"].get("gpu")
    if device is None:
        raise ConfigurationError(f"{where} was measured on a CPU; a plan is for GPUs.")
    key = _NAMES.get(device)
    if gpu is None and key is None:
        raise ConfigurationError(f"{where} was measured on a '{device}', which is not in the hardware file.")
    chosen = gpu or gpus[key or ""]
    if key is not None and key != chosen.key:
        raise ConfigurationError(f"{where} was measured on a {device}, and the plan is for {chosen.name}.")
    if not content["results"]:
        raise ConfigurationError(f"{where} holds no results: the run ended before its first case.")
    models, sweep = content["options"]["models"], content["options"]["sweep"]
    output_len = _whole(sweep, "output_len", Bounds(2, 1e5), where)
    check_document(content["results"], content.get("runs", []), output_len, where)
    engine, speculative = models["engine"], models["speculative"]
    target = _model(models["model"], chosen, engine, sweep)
    has_model = models["draft"] not in (None, "ngram")
    cache = {"kv_cache_dtype": engine["kv_cache_dtype"]} if "kv_cache_dtype" in engine else {}
    draft = _model(models["draft"], chosen, {**speculative, **cache}, sweep) if has_model else None
    return Measurement(
        source=path.name,
        date=str(content["date"]),
        command=str(content["command"]),
        commit=content["commit"],
        gpu=chosen,
        bandwidth=number(content["ceiling"], "bandwidth", Bounds(1, 1e18), where),
        target=target,
        draft=draft,
        input_len=_whole(sweep, "input_len", Bounds(1, 1e7), where),
        output_len=output_len,
        tp=_whole({"tensor_parallel_size": 1} | engine, "tensor_parallel_size", _RANKS, where),
        draft_tp=_whole({"draft_tensor_parallel_size": 1} | speculative, "draft_tensor_parallel_size", _RANKS, where),
        is_random=sweep["temperature"] > 0,
        cases=tuple(_cases(content["results"], content.get("runs", []), where)),
        configurations=tuple(content["configurations"]),
    )


def _model(name: str, gpu: Gpu, options: Mapping[str, Any], sweep: Mapping[str, Any]) -> PlannedModel:
    return read_model(
        name,
        gpu,
        quantization=options.get("quantization"),
        quantize_lm_head=options.get("quantize_lm_head", False),
        kv_cache_dtype=options.get("kv_cache_dtype", "auto"),
        max_model_len=sweep["input_len"] + sweep["output_len"],
    )


def _whole(row: Mapping[str, Any], name: str, bounds: Bounds, where: str) -> int:
    value = number(row, name, bounds, where)
    if value != int(value):
        raise ConfigurationError(f"{where}: {name} must be a whole number, not {value}.")
    return int(value)


def _num_steps(row: Mapping[str, Any], runs: list[dict[str, Any]], where: str) -> int | None:
    """Of the run that the row stands for; None where runs are not told."""
    run = median_run(row, runs, where)
    return None if run is None else _whole(run, "decode_steps", Bounds(1, 1e12), where)


def _tokens_name(row: Mapping[str, Any]) -> str:
    """What K drafts gave, without the last passes of a sequence, which have no room for drafts. Documents of earlier
    versions call that tokens_per_pass."""
    return "tokens_per_drafted_pass" if "tokens_per_drafted_pass" in row else "tokens_per_pass"


def _cases(rows: list[dict[str, Any]], runs: list[dict[str, Any]], where: str) -> Iterator[MeasuredCase]:
    """Of fixed Ks: what an adaptive one chose, step by step, is not told."""
    runs = [run for run in runs if not run.get("adaptive")]
    for row in rows:
        if row.get("adaptive"):
            continue
        batch = _whole(row, "batch", Bounds(1, 1e5), where)
        k = _whole(row, "k", Bounds(0, 1000), where)
        yield MeasuredCase(
            batch=batch,
            k=k,
            has_draft=bool(row["draft_loaded"]),
            tokens_per_second=number(row, "decode_tokens_per_second", Bounds(1e-6, 1e12), where),
            tokens_per_pass=number(row, _tokens_name(row), Bounds(1, k + 1 + 1e-6), where),
            step=number(row, "step_ms", _MILLISECONDS, where) / 1e3 if row["step_ms"] is not None else None,
            draft=number(row, "draft_ms", _PART, where) / 1e3,
            verify=number(row, "verify_ms", _PART, where) / 1e3,
            num_steps=_num_steps(row, runs, where),
        )
