"""A page with sliders: the same formulas in a script, over step times that were computed here on a grid.

Self-contained: no library, no request to anywhere. A step's time is linear in the positions a row sees, so two numbers
stand for it at every (GPU, TP, K, rows); between the rows of the grid the script interpolates. It opens with the plan's
own figures, which are in the page as they were computed, and interpolates from the first move of a slider on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from importlib import resources
from typing import Any

from paceline.capacity.calibration import Calibration
from paceline.capacity.document import document
from paceline.capacity.hardware import Gpu
from paceline.capacity.memory import room_for_positions
from paceline.capacity.pair import PlannedModel
from paceline.capacity.planner import Answer
from paceline.capacity.prices import Price, choose_price
from paceline.capacity.question import Question
from paceline.capacity.roofline import history_seconds, prefill_seconds, step_seconds
from paceline.errors import ConfigurationError

ROWS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
PROMPTS = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
_DIGITS = 7
Models = tuple[PlannedModel, PlannedModel | None]


def page_data(
    answer: Answer,
    models: Mapping[str, Models],
    gpus: Mapping[str, Gpu],
    prices: Sequence[Price],
    calibration: Calibration | None = None,
) -> Any:
    """`models`: the pair as each GPU has it (without FP8 products weights are wider)."""
    question = answer.question
    grids = {}
    for key, (target, draft) in models.items():
        asked = replace(question, gpu=gpus[key], target=target, draft=draft)
        found = {str(tp): grid for tp in _degrees(asked) if (grid := _grid(asked, tp)) is not None}
        if found:
            price = question.price if key == question.gpu.key else _price_there(prices, key, question.price)
            grids[key] = {
                "name": gpus[key].name,
                "gpusPerNode": gpus[key].gpus_per_node,
                "price": asdict(price) | {"words": price.in_words()} if price is not None else None,
                "runsPaceline": gpus[key].runs_paceline,
                "tps": found,
            }
    return {
        "ks": sorted({0, *question.ks}),
        "rows": list(ROWS),
        "prompts": list(PROMPTS),
        "maxNumSeqs": question.limits.max_num_seqs,
        "isLength": question.acceptance.depends_on_k,  # what "acceptance" is: tokens a pass, or a rate
        "acceptance": question.acceptance.length or question.acceptance.rate,
        "users": question.load.users or (answer.best.replicas * answer.best.point.concurrency if answer.best else 32),
        "gpus": grids,
        "plan": document(answer, calibration),
    }


def _degrees(question: Question) -> list[int]:
    """Another GPU than the plan's may have smaller nodes."""
    return [tp for tp in question.tps if tp <= question.gpu.gpus_per_node]


def _price_there(prices: Sequence[Price], key: str, chosen: Price | None) -> Price | None:
    """Of another GPU than the plan's: of the same cloud if it has one, else as if none had been said."""
    if chosen is not None and any((price.cloud, price.gpu) == (chosen.cloud, key) for price in prices):
        return choose_price(prices, key, chosen.cloud)
    try:
        return choose_price(prices, key, None)
    except ConfigurationError:  # the user's own, of several clouds: the page's slider has to say
        return None


def _grid(question: Question, tp: int) -> dict[str, Any] | None:
    """None where the weights do not fit."""
    try:
        question.memory(tp, 0, 1)
    except ConfigurationError:
        return None
    replica = question.replica(tp)
    ks = sorted({0, *question.ks})
    longest = question.target.architecture.max_position_embeddings

    def seconds(k: int, rows: int, positions: float) -> float:
        return step_seconds(replica.setup, replica.target, replica.draft, rows=rows, k=k, positions=positions).total

    def line(k: int, rows: int) -> list[float]:
        at_zero, at_thousand = seconds(k, rows, 0), seconds(k, rows, 1000)
        return [_rounded(at_zero), _rounded((at_thousand - at_zero) / 1000)]

    def prompt(tokens: int, draft: PlannedModel | None) -> float:
        most = replica.max_num_batched_tokens
        return _rounded(prefill_seconds(replica.setup, replica.target, draft, tokens=tokens, most_tokens=most))

    return {
        "steps": [[line(k, rows) for rows in ROWS] for k in ks],
        "positions": [[_positions(question, tp, k, rows) for rows in ROWS] for k in ks],
        "prompts": [
            [prompt(tokens, draft) for tokens in PROMPTS if tokens <= longest] for draft in (None, replica.draft)
        ],
        "history": [_rounded(history_seconds(replica.setup, replica.target, draft)) for draft in (None, replica.draft)],
    }


def _positions(question: Question, tp: int, k: int, rows: int) -> int:
    """That the cache of an engine for `rows` sequences has room for."""
    try:
        return room_for_positions(question.memory(tp, k, rows), question.limits)
    except ConfigurationError:
        return 0


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def render_page(data: Any) -> str:
    folder = resources.files("paceline.capacity").joinpath("data")
    template = folder.joinpath("page.html").read_text(encoding="utf-8")
    script = folder.joinpath("page.js").read_text(encoding="utf-8")
    content = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("</", "<\\/")
    return template.replace("/*SCRIPT*/", script).replace("/*DATA*/null", content)
