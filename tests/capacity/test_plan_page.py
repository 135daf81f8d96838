"""The page with sliders answers the question that the command was asked: whatever was asked, its script over the grid
must come to the planner's own figures, and to the same causes."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from importlib import resources
from math import inf
from pathlib import Path
from typing import Any

import pytest
from capacity.cases import GPUS, draft, measurement, question, target

from paceline.bench.acceptance import SyntheticAcceptance
from paceline.capacity.calibration import calibrate
from paceline.capacity.efficiency import Efficiency
from paceline.capacity.memory import Limits
from paceline.capacity.page import page_data
from paceline.capacity.planner import Answer, answer
from paceline.capacity.prices import load_prices
from paceline.capacity.question import Question
from paceline.capacity.sentences import saving_in_words

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="no node to run the page's script")
FEW = Limits(max_model_len=4096, max_num_seqs=8)
ASKED = {
    "few sequences a replica": replace(question(), limits=FEW),
    "a length of acceptance": replace(question(ks=(0, 1, 2, 3, 5)), acceptance=SyntheticAcceptance(length=3.0)),
    "arrivals": question(users=None, requests_per_second=20.0),
    "few arrivals": question(users=None, requests_per_second=0.01),
    "any latency": question(users=4096, tpot=inf, ttft=inf),
    "no drafts": question(ks=(0,)),
}


def _page(tmp_path: Path, asked: Question, expression: str) -> Any:
    """`expression`, in JavaScript, over the script (`page`), its `data` and the `input` it opens with."""
    data = page_data(answer(asked), {"h200": (target(), draft())}, GPUS, load_prices())
    script = Path(str(resources.files("paceline.capacity").joinpath("data", "page.js")))
    (tmp_path / "data.json").write_text(json.dumps(data))
    run = subprocess.run(
        [
            "node", "-e",
            f"const page = require({json.dumps(str(script))});"
            "const data = JSON.parse(require('fs').readFileSync('data.json')), input = page.initial(data);"
            "const words = (found, given) => page.verdict(data, found, data.gpus.h200, given);"
            f"console.log(JSON.stringify({expression}));",
        ],
        cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return json.loads(run.stdout)


@needs_node
@pytest.mark.parametrize("kind", ASKED)
def test_a_slider_moved_by_nothing_changes_nothing(tmp_path: Path, kind: str) -> None:
    """The grid's answer to the plan's own question: limits, acceptance, load and objective as they were asked."""
    asked = ASKED[kind]
    expected = answer(asked)
    found = _page(tmp_path, asked, "page.answer(data, input)")
    for name in ("plain", "speculative"):
        fleet = getattr(expected, name)
        if fleet is None:
            assert found[name] is None
            continue
        assert (found[name]["tp"], found[name]["gpus"]) == (fleet.tp, fleet.num_gpus)
        assert found[name]["most"] <= asked.limits.max_num_seqs
        assert found[name]["tokens"] == pytest.approx(fleet.tokens_per_second, rel=0.02)
        assert found[name]["point"]["tpot"] == pytest.approx(fleet.point.tpot, rel=0.05)
        assert found[name]["cost"] == pytest.approx(fleet.money.usd_per_month)
    assert [row["concurrency"] for row in found["sweep"]] == [row.concurrency for row in expected.sweep]
    assert [row["gain"] for row in found["sweep"]] == pytest.approx([row.gain for row in expected.sweep], rel=0.02)


def _dear() -> Answer:
    """Drafts that cost more, since the draft's cache leaves less room."""
    return answer(question(users=4096, tpot=inf, ttft=inf, rate=0.5))


@needs_node
def test_why_drafts_cost_more_is_named_as_the_command_names_it(tmp_path: Path) -> None:
    found = _dear()
    cause = "the cache is short, and within its room a replica can have"
    assert cause in " ".join(saving_in_words(found))
    opened, moved = _page(
        tmp_path,
        found.question,
        "[page.shown(data, input).found, page.answer(data, input)].map((f) => words(f, input))",
    )
    assert cause in opened
    assert cause in moved
    assert "batching" not in opened + moved


@needs_node
@pytest.mark.parametrize(("objective", "cause"), [("ttft", "first token misses"), ("tpot", "time a token misses")])
def test_why_no_k_meets_the_objective_is_named(tmp_path: Path, objective: str, cause: str) -> None:
    """Drafts that are never kept, and an objective that the fastest degree alone just meets without them."""
    free = question(users=1, rate=0.0, tpot=inf, ttft=inf, ks=(0, 5))
    alone = min(getattr(fleet.point, objective) for fleet in answer(free).fleets if fleet.k == 0)
    bounds: dict[str, Any] = {"ttft": inf, "tpot": inf} | {objective: alone * 1.001}
    asked = question(users=1, rate=0.0, ks=(0, 5), **bounds)
    said = _page(tmp_path, asked, "words(page.shown(data, input).found, input)")
    assert said.startswith("No K meets this objective (")
    assert cause in said


@needs_node
def test_a_degree_that_a_gpu_has_not_is_not_called_a_missed_objective(tmp_path: Path) -> None:
    asked = replace(question(), tps=(2, 4))
    said = _page(tmp_path, asked, "((i) => words(page.shown(data, i).found, i))({...input, tp: 1})")
    assert said.startswith("NVIDIA H200 SXM 141 GB cannot be planned with TP=1")


def test_a_gpu_is_offered_no_degree_beyond_its_node() -> None:
    pair = target(), draft()
    gpus = {**GPUS, "h100-nvl": replace(GPUS["h100-nvl"], gpus_per_node=2)}
    data = page_data(answer(question()), {"h200": pair, "h100-nvl": pair}, gpus, load_prices())
    assert {key: sorted(gpu["tps"]) for key, gpu in data["gpus"].items()} == {
        "h200": ["1", "2", "4"],
        "h100-nvl": ["1", "2"],
    }


def test_the_page_says_what_it_is_calibrated_with() -> None:
    run = calibrate(measurement(Efficiency(read=0.8)))
    data = page_data(answer(question()), {"h200": (target(), draft())}, GPUS, load_prices(), run)
    assert data["plan"]["efficiency"]["calibrated_with"] == run.source
