"""The figures of a run, derived from its records: what bench.json holds and what a report shows.

Results of other tools are read into the same form (guidellm.py, vllm_bench.py); what they do not say is None or empty.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from paceline.bench.digests import of_document
from paceline.bench.files import replacing
from paceline.bench.serve.intervals import Estimate, Slices
from paceline.bench.serve.records import SCHEMA, ArmInfo, Load

OWN_TOOL = "paceline bench serve"
CUT_SHORT = "The run did not end: "  # how the note begins that says why
STATISTICS = ("mean", "p50", "p90", "p95", "p99")


class Acceptance(msgspec.Struct):
    """`rate`: accepted / drafted; `mean_length`: tokens a target pass that had drafts (1 and the accepted ones);
    `per_position[i]`: share of the passes with drafts whose draft i was kept."""

    drafts: float
    draft_tokens: float
    accepted_tokens: float
    per_position: list[float]
    source: str  # answers: the metrics of every answer; counters: the server's, which count others' requests too

    @property
    def rate(self) -> float:
        return self.accepted_tokens / self.draft_tokens if self.draft_tokens else 0.0

    @property
    def mean_length(self) -> float:
        return 1 + self.accepted_tokens / self.drafts if self.drafts else 1.0


class Passes(msgspec.Struct):
    """Decoding passes of the target, a row each, with drafts or without, and the tokens that came by them. The first
    token, which a prompt's own pass gives, is not among them."""

    count: float
    tokens: float

    @property
    def tokens_a_pass(self) -> float:
        return self.tokens / self.count if self.count else 1.0


class Case(msgspec.Struct):
    """One arm under one load, all rounds together. Milliseconds, tokens a second, US dollars."""

    arm: str
    load: Load
    num_rounds: int
    num_requests: int
    num_failed: int
    output_tokens: int
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    seconds: float | None = None
    mean_concurrency: float | None = None
    requests_per_second: float | None = None
    output_tok_s: Estimate | None = None
    per_user_tok_s: Estimate | None = None
    per_gpu_tok_s: Estimate | None = None
    interactivity_tok_s: Estimate | None = None
    usd_per_million_tokens: Estimate | None = None
    goodput_share: Estimate | None = None
    goodput_requests_per_second: float | None = None
    latency_ms: dict[str, dict[str, Estimate]] = {}  # metric -> statistic
    acceptance: Acceptance | None = None
    acceptance_by_category: dict[str, Acceptance] = {}
    passes: Passes | None = None
    passes_by_category: dict[str, Passes] = {}
    step_seconds: dict[str, float] = {}  # draft, verify, accept, and host (what is in none of them): seconds
    slice_rates: list[float] = []  # tok/s of tenths of rounds, for intervals of ratios
    slice_seconds: list[float] = []  # how long each of them is
    errors: dict[str, int] = {}

    @property
    def slices(self) -> Slices:
        """Files of earlier versions have no seconds: there the speed is the mean over the slices."""
        seconds = self.slice_seconds or [1.0] * len(self.slice_rates)
        return Slices(np.asarray(self.slice_rates, dtype=float), np.asarray(seconds, dtype=float))

    @property
    def leaves_out_tokens(self) -> bool:
        """Whether some came when not every user had a request under way."""
        return bool(self.slice_seconds) and self.slices.tokens < self.output_tokens - 0.5

    def latency(self, metric: str, statistic: str) -> float | None:
        found = self.latency_ms.get(metric, {}).get(statistic)
        return None if found is None else found.value


class Comparison(msgspec.Struct):
    """An arm over its baseline under one load; above 1 the arm is better."""

    arm: str
    baseline: str
    load: Load
    throughput_gain: Estimate | None
    pace_gain: Estimate | None  # mean TPOT of the baseline / the arm's
    ttft_gain: Estimate | None
    same_texts: int | None = None  # of num_pairs answers with the same place in the same round
    num_pairs: int = 0
    across: bool = False  # the two are of different runs, which did not take turns

    @property
    def gain(self) -> Estimate | None:
        """What the load leaves to gain: throughput, or pace where arrivals decide the throughput."""
        return self.throughput_gain or self.pace_gain

    @property
    def gain_words(self) -> str:
        return "gain in tok/s" if self.throughput_gain else "gain in pace"


class BreakEven(msgspec.Struct):
    """`users`: where the throughput gain falls to 1, between two measured loads; None: not within them."""

    arm: str
    baseline: str
    users: float | None
    words: str


class Source(msgspec.Struct):
    """Where the cases of some arms come from."""

    tool: str
    environment: dict[str, Any]
    options: dict[str, Any]
    arms: list[str]


class Results(msgspec.Struct):
    """`sources`: only where results of several files are shown together."""

    benchmark: str
    schema: int
    tool: str
    environment: dict[str, Any]
    options: dict[str, Any]
    arms: list[ArmInfo]
    baseline: str | None
    notes: list[str]
    cases: list[Case]
    comparisons: list[Comparison] = []
    break_even: list[BreakEven] = []
    sources: list[Source] = []
    warnings: list[str] = []  # what must be read before any figure: in what runs differ, that one drifted
    digest: str | None = None  # of all else in a file (digests.py); None: not from a file, or from an earlier version's

    @property
    def origins(self) -> list[Source]:
        return self.sources or [Source(self.tool, self.environment, self.options, [arm.name for arm in self.arms])]

    def arm(self, name: str) -> ArmInfo:
        return next(arm for arm in self.arms if arm.name == name)

    def of(self, arm: str) -> list[Case]:
        return [case for case in self.cases if case.arm == arm]


BENCHMARK = "serve"


def write_results(path: Path, results: Results) -> None:
    content = msgspec.json.encode(msgspec.to_builtins(results))
    plain = json.loads(content)
    content = msgspec.json.encode({**plain, "digest": of_document(plain)})
    with replacing(path) as partial:
        partial.write_bytes(msgspec.json.format(content, indent=1) + b"\n")


def is_own(content: Any) -> bool:
    return isinstance(content, dict) and content.get("benchmark") == BENCHMARK and "cases" in content


def own_results(content: Any) -> Results:
    """Raises msgspec.ValidationError."""
    found = msgspec.convert(content, Results)
    if found.schema != SCHEMA:
        raise msgspec.ValidationError(f"schema {found.schema}; this version reads {SCHEMA}")
    return found
