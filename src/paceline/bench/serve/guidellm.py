"""GuideLLM's JSON (`--output kind=json`), as version 0.8.1 wrote it here; 0.3's place of the strategy is known too.

Its inter_token_latency_ms is (last - first token) / (tokens - 1) of a request, which is TPOT here; its
time_per_output_token_ms includes the first token and has no counterpart. Throughput is its output tokens over its
duration, the end of the run included, where paceline bench serve leaves that out.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from paceline.bench.serve.intervals import Estimate
from paceline.bench.serve.records import SCHEMA, ArmInfo, Load
from paceline.bench.serve.results import BENCHMARK, STATISTICS, Case, Results

_METRICS = {
    "ttft": ("time_to_first_token_ms", 1.0),
    "tpot": ("inter_token_latency_ms", 1.0),
    "e2e": ("request_latency", 1e3),
}


def is_guidellm(content: Any) -> bool:
    if not isinstance(content, dict) or not isinstance(content.get("benchmarks"), list) or not content["benchmarks"]:
        return False
    first = content["benchmarks"][0]
    return isinstance(first, dict) and "time_to_first_token_ms" in first.get("metrics", {})


def read(content: dict[str, Any], path: Path) -> Results:
    """Raises KeyError, TypeError or ValueError where a field is not what it should be."""
    benchmarks = content["benchmarks"]
    backend = _configuration(benchmarks[0]).get("backend") or {}
    backend = backend if isinstance(backend, dict) else {}
    name = path.stem
    arm = ArmInfo(
        name=name,
        url=str(backend.get("target", "")),
        model=str(backend.get("model") or ""),
        server="",
        counting="usage",
        fresh_prompts="none",
    )
    version = content.get("metadata", {}).get("guidellm_version", "")
    started = benchmarks[0].get("start_time")
    return Results(
        benchmark=BENCHMARK,
        schema=SCHEMA,
        tool=f"GuideLLM {version}".strip(),
        environment={"date": _date(started)} if started else {},
        options={},
        arms=[arm],
        baseline=None,
        notes=[f"{name}: GuideLLM's throughput counts the end of a run too, where fewer users are left."],
        cases=[_case(name, benchmark) for benchmark in benchmarks],
    )


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _configuration(benchmark: dict[str, Any]) -> dict[str, Any]:
    found = benchmark.get("config") or benchmark.get("args") or {}
    return found if isinstance(found, dict) else {}


def _case(arm: str, benchmark: dict[str, Any]) -> Case:
    metrics = benchmark["metrics"]
    counts = metrics["request_totals"]
    seconds = float(benchmark["duration"])
    tokens = float(metrics["output_token_count"]["successful"]["total_sum"])
    load = _load(benchmark)
    speed = tokens / seconds if seconds else 0.0
    latency = {name: _statistics(metrics[key]["successful"], scale) for name, (key, scale) in _METRICS.items()}
    median = latency["tpot"]["p50"].value
    return Case(
        arm=arm,
        load=load,
        num_rounds=1,
        num_requests=int(counts["successful"]) + int(counts["errored"]),
        num_failed=int(counts["errored"]),
        output_tokens=round(tokens),
        prompt_tokens=round(float(metrics["prompt_token_count"]["successful"]["total_sum"])),
        seconds=seconds,
        mean_concurrency=float(metrics["request_concurrency"]["successful"]["mean"]),
        requests_per_second=int(counts["successful"]) / seconds if seconds else None,
        output_tok_s=Estimate(speed),
        per_user_tok_s=Estimate(speed / load.value) if load.kind == "users" else None,
        interactivity_tok_s=Estimate(1e3 / median) if median else None,
        latency_ms=latency,
    )


def _load(benchmark: dict[str, Any]) -> Load:
    strategy = _configuration(benchmark).get("strategy") or (benchmark.get("scheduler") or {}).get("strategy") or {}
    kind = strategy.get("type_", "")
    if kind in ("constant", "poisson", "async"):
        return Load("rate", float(strategy["rate"]))
    users = 1 if kind == "synchronous" else strategy.get("streams") or strategy.get("max_concurrency")
    if not users:
        users = round(float(benchmark["metrics"]["request_concurrency"]["successful"]["mean"]))
    return Load("users", float(users))


def _statistics(distribution: dict[str, Any], scale: float) -> dict[str, Estimate]:
    interval = distribution.get("mean_ci") or {}
    known = [None if interval.get(side) is None else float(interval[side]) * scale for side in ("lower", "upper")]
    # by a normal law the interval of a few scattered requests begins below 0, where no latency is
    edges = [None if edge is None else max(0.0, edge) for edge in known]
    found = {"mean": Estimate(float(distribution["mean"]) * scale, *edges)}
    for statistic in STATISTICS[1:]:
        found[statistic] = Estimate(float(distribution["percentiles"][statistic]) * scale)
    return found
