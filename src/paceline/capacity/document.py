"""A plan as one JSON document: what was asked, what was assumed and from where, what follows. Nothing is rounded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from math import isinf
from typing import Any

from paceline.bench.environment import environment
from paceline.capacity.calibration import Calibration, Prediction
from paceline.capacity.economics import HOURS_PER_MONTH
from paceline.capacity.efficiency import CONSTANTS, ORIGINS
from paceline.capacity.pair import PlannedModel
from paceline.capacity.planner import Answer, Fleet
from paceline.capacity.question import Question
from paceline.capacity.serve_command import serve_command
from paceline.worker.memory_plan import MemoryPlan

UNITS = {
    "times": "seconds, means",
    "tokens_per_second": "output tokens a second",
    "money": f"US dollars; a month has {HOURS_PER_MONTH:g} hours",
    "saving": "share of the plain fleet's cost; at_plain_tp: with the same tensor parallelism, else each at its best",
    "memory": "bytes of one GPU",
}


def document(answer: Answer, calibration: Calibration | None) -> dict[str, Any]:
    question = answer.question
    about = environment("cpu")
    about.pop("hardware")  # of this machine: the plan is for another
    return {
        "tool": "plan",
        **about,
        "units": UNITS,
        "question": _question(question),
        "gpu": asdict(question.gpu),
        "price": asdict(question.price) if question.price is not None else None,
        "efficiency": {
            "values": question.efficiency.as_dict(),
            "origins": ORIGINS,
            "constants": CONSTANTS,
            "calibrated_with": calibration.source if calibration is not None else None,
        },
        "calibration": _calibration(calibration) if calibration is not None else None,
        "best": _fleet(answer.best),
        "plain": _fleet(answer.plain),
        "speculative": _fleet(answer.speculative),
        "saving": answer.saving,
        "speculative_at_plain_tp": _fleet(answer.speculative_at_plain_tp),
        "saving_at_plain_tp": answer.saving_at_plain_tp,
        "gpu_saving": answer.gpu_saving,
        "serve_command": serve_command(question, answer.best) if answer.best is not None else None,
        "fleets": [_fleet(fleet) for fleet in answer.fleets],
        "sweep": {
            "tp": answer.swept_tp,
            "break_even_concurrency": answer.break_even,
            "rows": [
                {
                    "concurrency": swept.concurrency,
                    "best_k": swept.best.k,
                    "gain": swept.gain,
                    "points": [asdict(point) for point in swept.points],
                }
                for swept in answer.sweep
            ],
        },
        "notes": list(answer.notes),
    }


def _question(question: Question) -> dict[str, Any]:
    load, objective = question.load, question.objective
    return {
        "model": _model(question.target),
        "draft": _model(question.draft) if question.draft else ("ngram" if question.is_ngram else None),
        "acceptance": asdict(question.acceptance),
        "users": load.users,
        "requests_per_second": load.requests_per_second,
        **asdict(load.workload),
        "ttft_seconds": None if isinf(objective.ttft) else objective.ttft,
        "tpot_seconds": None if isinf(objective.tpot) else objective.tpot,
        "ks": list(question.ks),
        "tps": list(question.tps),
        "draft_tp": question.draft_tp,
        "limits": asdict(question.limits),
        "utilization": question.utilization,
        "selling": asdict(question.selling),
        "sampled": question.is_random,
    }


def _model(model: PlannedModel) -> dict[str, Any]:
    return {
        "name": model.name,
        "formats": model.formats.words or "bfloat16",
        "weight_bytes_read_a_pass": model.read_bytes,
        "kv_bytes_per_position": model.kv_bytes_per_position,
    }


def _fleet(fleet: Fleet | None) -> dict[str, Any] | None:
    if fleet is None:
        return None
    return {
        "tp": fleet.tp,
        "k": fleet.k,
        "replicas": fleet.replicas,
        "gpus": fleet.num_gpus,
        "rented_gpus": fleet.rented_gpus,
        "nodes": fleet.nodes,
        "most_sequences_per_replica": fleet.most_sequences,
        "limit": fleet.limit,
        "tokens_per_second": fleet.tokens_per_second,
        "replica": asdict(fleet.point),
        "memory": _memory(fleet.memory),
        "money": asdict(fleet.money) if fleet.money is not None else None,
    }


def _memory(plan: MemoryPlan) -> dict[str, Any]:
    return {**asdict(plan), "pool_bytes": plan.pool_bytes, "planned_bytes": plan.planned_bytes}


def _calibration(calibration: Calibration) -> dict[str, Any]:
    return {
        "source": calibration.source,
        "largest_error_before": max(abs(prediction.error) for prediction in calibration.before),
        "largest_error_after": calibration.largest_error,
        "cases": predictions(calibration.before, calibration.after),
    }


def predictions(before: Sequence[Prediction], after: Sequence[Prediction]) -> list[dict[str, Any]]:
    return [
        {
            "batch": first.case.batch,
            "k": first.case.k,
            "draft_loaded": first.case.has_draft,
            "measured_tokens_per_second": first.case.tokens_per_second,
            "predicted_before": first.tokens_per_second,
            "predicted_after": second.tokens_per_second,
            "error_before": first.error,
            "error_after": second.error,
            "step_error_before": first.step_error,
            "step_error_after": second.step_error,
        }
        for first, second in zip(before, after, strict=True)
    ]
