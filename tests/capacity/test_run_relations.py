"""Edited documents of `paceline bench offline`: what does not follow from its runs is no measurement to fit to."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from capacity.cases import GPUS

from paceline.capacity.measurement import read_measurement
from paceline.errors import ConfigurationError

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
RECORDED = sorted(path for path in RESULTS.glob("h200-*.json"))
RUN: dict[str, Any] = json.loads((RESULTS / "h200-70b-1b-fp8.json").read_text())


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_recorded_documents_are_sound(path: Path) -> None:
    assert read_measurement(path, GPUS).cases


def test_a_number_that_is_none_is_named_as_such(tmp_path: Path) -> None:
    content = copy.deepcopy(RUN)
    content["options"]["sweep"]["seed"] = float("nan")
    (tmp_path / "run.json").write_text(json.dumps(content, indent=1))
    with pytest.raises(ConfigurationError, match="cannot be read as JSON: it holds NaN, which is no finite number"):
        read_measurement(tmp_path / "run.json", GPUS)


@pytest.mark.parametrize(
    ("part", "change", "said"),
    [
        ("results", {"decode_tokens_per_second": 9e3}, "tokens_per_second_per_user is .*, of 9000 in all"),
        ("results", {"decode_tokens_per_second": 9e3, "tokens_per_second_per_user": 9e3},
         "batch 1, K=5: decode_tokens_per_second is 9000, and its run gives"),
        ("results", {"tokens_per_pass": 5.5}, "tokens_per_pass is 5.5, and its run gives"),
        ("results", {"step_ms": 90.0}, "step_ms is 90, and its run gives"),
        ("results", {"verify_ms": 90.0}, r"verify_ms is 90, above step_ms \("),
        ("results", {"batch": 2, "tokens_per_second_per_user": None}, "batch 2, K=5: there is no run of it"),
        ("runs", {"decode_tokens": 256}, r"decode_tokens is 256, above a token short of all answers \(255\)"),
        ("runs", {"decode_steps": 3}, "decode_tokens is 255, above what decode_steps can give"),
        ("runs", {"full_steps": 10**6}, "full_steps is 1e[+]06, above decode_steps"),
        ("runs", {"num_accepted_tokens": 10**4}, "num_accepted_tokens is 10000, above num_draft_tokens"),
        ("runs", {"num_draft_tokens": 10**4}, "num_draft_tokens is 10000, above K of each draft"),
        ("runs", {"full_seconds": 99.0}, "full_seconds is 99, above decode_seconds"),
        ("runs", {"verify_seconds": 99.0}, "verify_seconds is 99, above decode_seconds"),
        ("runs", {"num_passes": 3}, "num_drafts is .*, above num_passes"),
        ("runs", {"decode_seconds": -1.0}, "decode_seconds must be 0 or from"),
    ],
)  # fmt: skip
def test_an_edited_figure_is_refused(tmp_path: Path, part: str, change: dict[str, Any], said: str) -> None:
    content = copy.deepcopy(RUN)
    one = next(line for line in content[part] if (line["batch"], line["k"], line["draft_loaded"]) == (1, 5, True))
    one |= change
    path = tmp_path / "run.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigurationError, match=said) as refused:
        read_measurement(path, GPUS)
    assert "run.json" in str(refused.value)
