"""The JSON of `vllm bench serve --save-result` (or --append-result): names as its documentation lists them.

Its ITL counts chunks, not tokens (a chunk of a speculating server carries several), so it is read as the gap between
chunks. Its means and percentiles come without intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.bench.serve.intervals import Estimate
from paceline.bench.serve.passes import undrafted
from paceline.bench.serve.records import SCHEMA, ArmInfo, Load
from paceline.bench.serve.results import BENCHMARK, STATISTICS, Acceptance, Case, Passes, Results

_LITTLE = 0.02  # rounding
_METRICS = {"ttft": "ttft", "tpot": "tpot", "itl": "gap", "e2el": "e2e"}


def is_vllm(content: Any) -> bool:
    return isinstance(content, dict) and {"output_throughput", "completed", "duration"} <= content.keys()


def read(contents: Sequence[dict[str, Any]], path: Path) -> Results:
    """Raises KeyError, TypeError or ValueError where a field is not what it should be."""
    first = contents[0]
    name = str(first.get("label") or first.get("backend") or path.stem)
    arm = ArmInfo(name=name, url="", model=str(first.get("model_id", "")), server="", counting="", fresh_prompts="none")
    return Results(
        benchmark=BENCHMARK,
        schema=SCHEMA,
        tool="vllm bench serve",
        environment={"date": str(first.get("date", "")), "command": ""},
        options={},
        arms=[arm],
        baseline=None,
        notes=[f"{name}: vllm bench serve measures the time between chunks; it is shown as such, and ITL is left out."],
        cases=[_case(name, content) for content in contents],
    )


def _case(arm: str, content: dict[str, Any]) -> Case:
    load = _load(content)
    speed = float(content["output_throughput"])
    for name, counted in (("output_throughput", "total_output_tokens"), ("request_throughput", "completed")):
        _check_rate(content, name, counted)
    _check_details(content)
    median = content.get("median_tpot_ms")
    users = load.value if load.kind == "users" else None
    return Case(
        arm=arm,
        load=load,
        num_rounds=1,
        num_requests=int(content["completed"]) + int(content.get("failed") or 0),
        num_failed=int(content.get("failed") or 0),
        output_tokens=int(content["total_output_tokens"]),
        prompt_tokens=int(content["total_input_tokens"]),
        seconds=float(content["duration"]),
        requests_per_second=float(content["request_throughput"]),
        output_tok_s=Estimate(speed),
        per_user_tok_s=Estimate(speed / users) if users else None,
        interactivity_tok_s=Estimate(1e3 / median) if median else None,
        goodput_requests_per_second=content.get("request_goodput"),
        latency_ms=_latency(content),
        acceptance=_acceptance(content),
        passes=_passes(content),
    )


def _check_rate(content: dict[str, Any], name: str, counted: str) -> None:
    """Raises ValueError where a rate is not what it is the rate of."""
    seconds = float(content["duration"])
    if not seconds > 0:
        raise ValueError(f"a duration of {seconds:g} s")
    said, is_so = float(content[name]), float(content[counted]) / seconds
    if not abs(said - is_so) <= _LITTLE * max(is_so, 1e-9):
        raise ValueError(f"{name} is {said:g}, and {counted} over duration {is_so:.4g}")


def _check_details(content: dict[str, Any]) -> None:
    """With --save-detailed there is a figure a request. Raises ValueError where the total or the mean is not theirs."""
    for name, total in (("output_lens", "total_output_tokens"), ("input_lens", "total_input_tokens")):
        if content.get(name) and not content.get("failed") and sum(content[name]) != content[total]:
            raise ValueError(f"{name} add up to {sum(content[name])}, and {total} is {content[total]}")
    ttfts, said = content.get("ttfts"), content.get("mean_ttft_ms")
    if ttfts and said and not content.get("failed"):
        mean = 1e3 * sum(ttfts) / len(ttfts)
        if not abs(mean - said) <= _LITTLE * mean:
            raise ValueError(f"ttfts have a mean of {mean:g} ms, and mean_ttft_ms is {said:g}")


def _load(content: dict[str, Any]) -> Load:
    rate, users = content.get("request_rate", "inf"), content.get("max_concurrency")
    if rate not in ("inf", None) and float(rate) != float("inf"):
        return Load("rate", float(rate))
    if users is not None and not float(users) > 0:
        raise ValueError(f"a max_concurrency of {users}")
    return Load("users", float(users or content.get("num_prompts") or content["completed"]))


def _latency(content: dict[str, Any]) -> dict[str, dict[str, Estimate]]:
    found: dict[str, dict[str, Estimate]] = {}
    for theirs, ours in _METRICS.items():
        keys = {statistic: f"{statistic}_{theirs}_ms" for statistic in STATISTICS} | {"p50": f"median_{theirs}_ms"}
        values = {name: Estimate(float(content[key])) for name, key in keys.items() if content.get(key) is not None}
        if values:
            found[ours] = values
    return found


def _passes(content: dict[str, Any]) -> Passes | None:
    if not content.get("spec_decode_num_drafts"):
        return None
    later = max(0, int(content["total_output_tokens"]) - int(content["completed"]))  # each prompt's pass gave one
    accepted, drafts = content["spec_decode_accepted_tokens"], content["spec_decode_num_drafts"]
    return Passes(undrafted(later, float(accepted), float(drafts)), later)


def _acceptance(content: dict[str, Any]) -> Acceptance | None:
    if not content.get("spec_decode_num_drafts"):
        return None
    return Acceptance(
        drafts=content["spec_decode_num_drafts"],
        draft_tokens=content["spec_decode_draft_tokens"],
        accepted_tokens=content["spec_decode_accepted_tokens"],
        per_position=[float(rate) for rate in content.get("spec_decode_per_position_acceptance_rates") or []],
        source="counters",
    )
