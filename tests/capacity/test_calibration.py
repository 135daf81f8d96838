"""Fitting to a measurement, reading one, and the recorded runs on a card."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from capacity.cases import GPUS, measurement

from paceline.capacity.calibration import calibrate, predict
from paceline.capacity.efficiency import Efficiency
from paceline.capacity.measurement import read_measurement
from paceline.capacity.memory_check import compare_memory
from paceline.errors import ConfigurationError

RECORDED = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "h200-70b-1b-fp8.json"
OTHER = Efficiency(read=0.8, compute=0.55, product_start=2.5e-6, attention=1.6, step_gap=3e-4)


def test_a_card_of_another_efficiency_is_found_again() -> None:
    measured = measurement(OTHER)
    found = calibrate(measured)
    assert max(abs(case.error) for case in found.before) > 0.15
    assert found.largest_error < 0.02
    assert found.efficiency.read == pytest.approx(OTHER.read, rel=0.05)
    assert found.efficiency.compute == pytest.approx(OTHER.compute, rel=0.05)


def test_what_fits_already_stays_as_it_is() -> None:
    found = calibrate(measurement(Efficiency()))
    assert found.efficiency.as_dict() == pytest.approx(Efficiency().as_dict(), rel=1e-3)
    assert found.largest_error < 1e-3


def test_too_little_to_fit_to() -> None:
    measured = measurement(Efficiency())
    with pytest.raises(ConfigurationError, match="at least 3 batches or Ks"):
        calibrate(replace(measured, cases=measured.cases[:2]))


def document(**changes: Any) -> dict[str, Any]:
    """As bench/report.py writes it, a few of its fields."""
    row = {
        "batch": 1, "k": 0, "draft_loaded": True, "decode_tokens_per_second": 50.0, "tokens_per_pass": 1.0,
        "step_ms": 20.0, "draft_ms": 0.0, "verify_ms": 19.0,
    }  # fmt: skip
    return {
        "benchmark": "offline",
        "command": "paceline bench offline",
        "commit": None,
        "date": "2026-11-30T12:00:00+00:00",
        "hardware": {"gpu": "NVIDIA H200", "gpu_memory_bytes": 150_110_011_392},
        "options": {
            "models": {
                "model": "llama-3.1-70b",
                "draft": "llama-3.2-1b",
                "engine": {"quantization": "fp8"},
                "speculative": {"quantization": "fp8", "quantize_lm_head": True},
            },
            "sweep": {"input_len": 128, "output_len": 256, "temperature": 0.0},
        },
        "configurations": [],
        "ceiling": {"bandwidth": 4.4e12},
        "results": [row, {**row, "batch": 8}, {**row, "k": 3, "tokens_per_pass": 2.8, "draft_ms": 2.0}],
        **changes,
    }


@pytest.mark.parametrize("indent", [1, None])
def test_a_document_of_bench_offline_is_read(tmp_path: Path, indent: int | None) -> None:
    """The file of --out, or what was printed with the document as its last line."""
    path = tmp_path / "run.json"
    path.write_text(("" if indent else "tables\n") + json.dumps(document(), indent=indent) + "\n")
    measured = read_measurement(path, GPUS)
    assert (measured.gpu.key, measured.input_len, measured.tp, measured.is_random) == ("h200", 128, 1, False)
    assert [case.batch for case in measured.cases] == [1, 8, 1]
    assert measured.cases[2].draft == pytest.approx(0.002)
    assert measured.draft is not None
    assert measured.draft.head.is_fp8


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "cannot be read as JSON"),
        ("{]", "cannot be read as JSON"),
        (json.dumps({"benchmark": "serve"}), "no document of 'paceline bench offline'"),
        (json.dumps(document(hardware={"cpu": "x"})), "measured on a CPU"),
        (json.dumps(document(hardware={"gpu": "NVIDIA GH200"})), "not in the hardware file"),
        (json.dumps(document(results=[{}])), "lacks 'batch'"),
    ],
)
def test_a_file_that_is_none_is_refused_by_name(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=message) as error:
        read_measurement(path, GPUS)
    assert "run.json" in str(error.value)


def test_a_measurement_of_another_card_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(document()))
    with pytest.raises(ConfigurationError, match="the plan is for NVIDIA H100"):
        read_measurement(path, GPUS, GPUS["h100-sxm"])


@pytest.mark.skipif(not RECORDED.exists(), reason="no run on a card is recorded yet")
def test_recorded_memory_plans_are_within_2_percent() -> None:
    """Weights, and everything together, of every engine that the recorded run built."""
    content = json.loads(RECORDED.read_text())
    measured = read_measurement(RECORDED, GPUS)
    engines = compare_memory(measured, content["hardware"]["gpu_memory_bytes"])
    assert engines
    for engine in engines:
        assert {"target weights", "in all"} <= engine.recorded.keys()
        for name in engine.recorded.keys() & {"target weights", "draft weights", "in all"}:
            assert engine.planned[name] == pytest.approx(engine.recorded[name], rel=0.02), (name, engine)


@pytest.mark.skipif(not RECORDED.exists(), reason="no run on a card is recorded yet")
def test_recorded_runs_are_predicted() -> None:
    """Within 15 % from first principles and 5 % calibrated, at every batch and K."""
    measured = read_measurement(RECORDED, GPUS)
    before = {(case.case.batch, case.case.k): case.error for case in predict(measured, Efficiency())}
    assert max(map(abs, before.values())) <= 0.15, before
    after = {(case.case.batch, case.case.k): case.error for case in calibrate(measured).after}
    assert max(map(abs, after.values())) <= 0.05, after


def test_what_an_adaptive_k_reached_is_no_case_of_a_fixed_one(tmp_path: Path) -> None:
    content = json.loads(RECORDED.read_text())
    recorded = len(content["results"])
    for name in ("results", "runs"):
        content[name] = [entry for entry in content[name] if not entry["adaptive"]]
    assert len(content["results"]) < recorded, "it has none, so nothing was tested"
    path = tmp_path / "run.json"
    path.write_text(json.dumps(content))
    assert read_measurement(path, GPUS).cases == read_measurement(RECORDED, GPUS).cases
