"""An engine whose acceptance can be set, and runs of it: what adaptive.py compares."""

from __future__ import annotations

import argparse
import copy
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import torch
from steps_by_kind import kind_of, settled_seconds
from torch import Tensor

from paceline import SamplingParams
from paceline.bench.acceptance import expected_tokens
from paceline.engine.engine import Engine
from paceline.plan import StepPlan
from paceline.sequence import EngineRequest

MIXED = (0.9, 0.1)  # of rows in turn
MOST = 7  # drafts


@dataclass
class Rig:
    """An engine, what its plans were, and the dial of its acceptance."""

    engine: Engine
    drafts: list[list[int]] = field(default_factory=list)  # of each step's rows
    kinds: list[list[int]] = field(default_factory=list)  # the same rows: which of MIXED they have
    next_request: int = 0

    def __post_init__(self) -> None:
        executor: Any = self.engine._executor
        submit = executor.submit

        def watched(plan: StepPlan) -> None:
            self.drafts.append([row.num_draft_tokens for row in plan.rows])
            self.kinds.append([row.sampling.seed % len(MIXED) for row in plan.rows if row.emits])
            submit(plan)

        executor.submit = watched
        self._worker = executor._worker
        assert self.engine._controller is not None
        self._costs = copy.deepcopy(self.engine._controller.costs)

    def set_acceptance(self, rate: float) -> None:
        self._worker.decoder._acceptance.decide._rates = [rate] * MOST
        if self._worker.captured is not None:
            self._worker.captured._rates.fill_(rate)  # the graphs read it where it lies

    def mix_acceptance(self) -> None:
        """Rows in turn."""
        decoder = self._worker.decoder
        if self._worker.captured is not None:
            for kind, rate in enumerate(MIXED):  # of even and odd seeds
                self._worker.captured._rates[kind].fill_(rate)
        decide = decoder._acceptance.decide

        def by_row(law: Any, proposal: Any, u_accept: Tensor, u_target: Tensor) -> Any:
            # A number below the row's rate is made one below the common rate, and the other way round.
            own = torch.tensor([MIXED[kind] for kind in self.kinds[-1]], dtype=u_accept.dtype)[:, None]
            own = own.to(u_accept.device)  # a GPU's steps that read prompts are eager
            decide._rates = [0.5] * MOST
            return decide(law, proposal, torch.where(u_accept < own, 0.0, 0.9), u_target)

        decoder._acceptance = replace(decoder._acceptance, decide=by_row)

    def costs(self) -> Any:
        """What steps cost as it was measured at start, for the record."""
        return msgspec.to_builtins(self._costs)

    def start_controller(self) -> Any:
        """One that knows what steps cost and nothing else."""
        self.engine.follow_costs(copy.deepcopy(self._costs))
        return self.engine._controller

    def use(self, controller: Any) -> None:
        """One that was started before."""
        self.engine.follow_costs(controller.costs)
        controller.start_anew()
        self.engine._controller = self.engine._scheduler.drafts.controller = controller

    def add(self, count: int, input_len: int, max_tokens: int) -> list[str]:
        names = [str(self.next_request + index) for index in range(count)]
        self.next_request += count
        vocab = self.engine.config.model.vocab_size
        for name in names:
            prompt = [(int(name) * 7919 + place * 104729) % (vocab - 2) for place in range(input_len)]
            params = SamplingParams(
                temperature=0.0, seed=int(name), max_tokens=max_tokens, ignore_eos=True, detokenize=False
            )  # a greedy request's seed binds no drafts
            self.engine.add_request(EngineRequest(request_id=name, prompt_token_ids=prompt, sampling_params=params))
        return names

    def drain(self, names: list[str]) -> None:
        for name in names:
            self.engine.abort(name)
        while self.engine.has_unfinished():
            self.engine.step()


def run(rig: Rig, batch: int, k: int | None, options: argparse.Namespace) -> dict[str, Any]:
    """K fixed, or chosen (None). Raw seconds, steps and how many rows had how many drafts."""
    rig.engine.set_num_speculative_tokens(k)
    names = rig.add(batch, options.input_len, 4 * options.tokens + 64)
    waiting, emitted = set(names), 0
    while waiting:
        for delta in rig.engine.step():
            waiting -= {delta.request_id} if delta.token_ids else set()
    rig.engine.step()  # the draft catches up, the host gets ahead
    first, started, steps = len(rig.drafts), time.perf_counter(), 0
    clock = [started]
    while emitted < batch * options.tokens:
        emitted += sum(len(delta.token_ids) for delta in rig.engine.step())
        steps += 1
        clock.append(time.perf_counter())
    seconds = clock[-1] - started
    planned = rig.drafts[first : first + steps]
    rig.drain(names)
    rows = Counter(count for step in planned for count in step)
    by_kind = Counter(
        (kind, count)
        for kinds, step in zip(rig.kinds[first : first + steps], planned, strict=True)
        for kind, count in zip(kinds, step, strict=True)
    )
    return {
        "batch": batch,
        "k": "adaptive" if k is None else k,
        "seconds": seconds,
        "steps": steps,
        "planned_steps": len(planned),
        "rows_by_drafts": {str(count): rows[count] for count in sorted(rows)},
        "rows_by_kind": [{str(k): by_kind[kind, k] for k in sorted(rows)} for kind in range(len(MIXED))],
        "k_of_steps": dict(sorted(Counter(str(max(step, default=0)) for step in planned).items())),
        "timed_steps": [
            (kind_of(step), after - before) for step, before, after in zip(planned, clock, clock[1:], strict=False)
        ],
    }


def settle(rounds: list[list[dict[str, Any]]]) -> None:
    """On a CPU: the seconds of each run become those of its steps at their usual times, over all rounds of its side."""
    sides: dict[Any, list[dict[str, Any]]] = {}
    for one in (one for found in rounds for one in found):
        sides.setdefault((one["acceptance"], one["k"]), []).append(one)
    for side in sides.values():
        for one, seconds in zip(side, settled_seconds(one.pop("timed_steps") for one in side), strict=True):
            one["raw_seconds"], one["seconds"] = one["seconds"], seconds


def without_steps(result: dict[str, Any]) -> dict[str, Any]:
    """A GPU's times hold, and its steps run ahead of their results."""
    return {name: value for name, value in result.items() if name != "timed_steps"}


def repeated(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """One run as long as all of these together."""
    whole = dict(runs[0])
    for other in runs[1:]:
        for name in ("seconds", "steps", "planned_steps"):
            whole[name] += other[name]
        for name in ("rows_by_drafts", "k_of_steps"):
            whole[name] = dict(sorted((Counter(whole[name]) + Counter(other[name])).items()))
        whole["rows_by_kind"] = [
            dict(Counter(one) + Counter(more))
            for one, more in zip(whole["rows_by_kind"], other["rows_by_kind"], strict=True)
        ]
    return whole


def speed(result: dict[str, Any], rate: float) -> float:
    """Expected tokens a second."""
    tokens = sum(expected_tokens(rate, int(k)) * count for k, count in result["rows_by_drafts"].items())
    return tokens / result["planned_steps"] * result["steps"] / result["seconds"]


def mixed_speed(result: dict[str, Any]) -> float:
    """The same where rows differ."""
    tokens: float = sum(
        expected_tokens(rate, int(k)) * count
        for rate, rows in zip(MIXED, result["rows_by_kind"], strict=True)
        for k, count in rows.items()
    )
    return tokens / result["planned_steps"] * result["steps"] / result["seconds"]
