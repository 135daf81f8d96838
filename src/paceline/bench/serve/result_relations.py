"""Do the figures of results fit each other? What can be derived from others is derived again and held against them;
what follows an order (percentiles, parts of a whole, edges of an interval) is checked for it.

A bench.json beside its requests.jsonl needs none of this: its figures are derived anew (reading.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from math import isclose
from typing import Any

import msgspec

from paceline.bench.serve.counters import FEW, LITTLE
from paceline.bench.serve.intervals import Estimate
from paceline.bench.serve.latency import METRICS
from paceline.bench.serve.record_relations import ENDS_AT_USAGE
from paceline.bench.serve.records import ArmInfo
from paceline.bench.serve.results import OWN_TOOL, STATISTICS, Acceptance, Case, Comparison, Passes, Results

_ROUNDING = 1e-3  # of figures that others wrote with a few digits
_PAIRED = 1.5  # a paired ratio leaves out answers of one token, which the means count
_ORDER = STATISTICS[1:]


def contradictions(results: Results) -> Iterator[str]:
    """Each names the arm, the load and both figures."""
    arms = {arm.name: arm for arm in results.arms}
    is_own = results.tool == OWN_TOOL
    places = [(case.arm, case.load) for case in results.cases]
    for case in results.cases:
        found = _of_case(case, arms[case.arm]) if not is_own else _of_own_case(case, arms[case.arm], results.options)
        yield from (f"{case.arm}, {case.load.label}: {problem}" for problem in found)
    if is_own and len(set(places)) < len(places):
        arm, load = next(place for place in places if places.count(place) > 1)
        yield f"{arm}, {load.label}: the case is there twice"
    for compared in results.comparisons:
        words = f"{compared.arm} over {compared.baseline}, {compared.load.label}"
        sides = [case for name in (compared.arm, compared.baseline) for case in results.of(name)]
        pair = [case for case in sides if case.load == compared.load]
        if len(pair) != 2:
            yield f"{words}: a comparison without a case of each"
        else:
            yield from (f"{words}: {problem}" for problem in _of_comparison(compared, *pair))


def _of_case(case: Case, arm: ArmInfo) -> Iterator[str]:
    """What holds for every tool."""
    yield from _of_estimates(msgspec.to_builtins(case), "")
    yield from _of_latencies(case)
    answered = case.num_requests - case.num_failed
    if case.output_tokens < answered:
        yield f"{case.output_tokens} output tokens in {answered} answers"
    if case.cached_tokens is not None and case.cached_tokens > (case.prompt_tokens or 0):
        yield f"cached_tokens is {case.cached_tokens}, and prompt_tokens {case.prompt_tokens}"
    if case.goodput_share is not None and case.goodput_share.value > 1:
        yield f"goodput_share is {case.goodput_share.value:g}, above 1"
    if case.errors and sum(case.errors.values()) != case.num_failed:
        yield f"{case.num_failed} failed, and errors name {sum(case.errors.values())}"
    speed, median = case.output_tok_s, (case.latency_ms.get("tpot") or {}).get("p50")
    users = case.load.value if case.load.kind == "users" else case.mean_concurrency
    seconds, share = case.seconds, case.goodput_share
    yield from _quotients(
        ("output_tok_s", speed, lambda: case.slices.tokens / sum(case.slice_seconds)) if case.slice_seconds else None,
        ("per_user_tok_s", case.per_user_tok_s, lambda: _of(speed) / users) if users else None,
        ("per_gpu_tok_s", case.per_gpu_tok_s, lambda: _of(speed) / (arm.num_gpus or 0)),
        (
            "usd_per_million_tokens",
            case.usd_per_million_tokens,
            lambda: (arm.price_per_hour or 0) / 3600 * 1e6 / _of(speed),
        ),
        ("interactivity_tok_s", case.interactivity_tok_s, lambda: 1e3 / _of(median)),
        ("requests_per_second", case.requests_per_second, lambda: answered / (seconds or 0)),
        ("goodput_requests_per_second", case.goodput_requests_per_second,
         lambda: _of(share) * case.num_requests / (seconds or 0)) if share else None,
    )  # fmt: skip
    good, every = case.goodput_requests_per_second, case.requests_per_second
    if good is not None and good > (every or 0) * (1 + _ROUNDING):
        yield f"goodput_requests_per_second is {good:g}, and requests_per_second {every or 0:g}"
    for found in (case.acceptance, *case.acceptance_by_category.values()):
        if found is not None:
            yield from _of_acceptance(found)


Quotient = tuple[str, Estimate | float | None, Callable[[], float]]


def _quotients(*quotients: Quotient | None) -> Iterator[str]:
    for quotient in quotients:
        if quotient is None or quotient[1] is None:
            continue
        name, said, derive = quotient
        try:
            is_so = derive()
        except ZeroDivisionError:
            yield f"{name} is {_of(said):g}, and what it is derived from is not there"
            continue
        if not isclose(_of(said), is_so, rel_tol=_ROUNDING, abs_tol=1e-12):
            yield f"{name} is {_of(said):.6g}, and its parts give {is_so:.6g}"


def _of(value: Estimate | float | None) -> float:
    return value.value if isinstance(value, Estimate) else float(value or 0)


def _of_estimates(part: Any, name: str) -> Iterator[str]:
    """Of everything that has an interval: it is not upside down, holds the value, and is of what is never below 0."""
    if isinstance(part, dict) and "value" in part and "low" in part:
        value, low, high = part["value"], part["low"], part["high"]
        if low is not None and low < 0:
            yield f"{name} is {value:g}, and its interval begins at {low:g}, below 0"
        known = [edge for edge in (low, value, high) if edge is not None]
        if any(later < earlier and not isclose(earlier, later, rel_tol=1e-9) for earlier, later in pairwise(known)):
            yield f"{name} is {value:g}, and its interval {low} to {high}"
    elif isinstance(part, dict):
        for key, inner in part.items():
            yield from _of_estimates(inner, f"{name} {key}".strip())


def _of_latencies(case: Case) -> Iterator[str]:
    for metric, statistics in case.latency_ms.items():
        if metric not in METRICS or not set(statistics) <= set(STATISTICS):
            yield f"latency_ms has {metric} with {', '.join(statistics)}; known are {', '.join(METRICS)}"
        known = [(name, statistics[name].value) for name in _ORDER if name in statistics]
        for (lower, before), (upper, after) in pairwise(known):
            if after < before and not isclose(before, after, rel_tol=1e-9):
                yield f"{metric.upper()} {upper.upper()} is {after:g} ms, and {lower.upper()} {before:g} ms"
    for less, more, names in (("ttft", "e2e", STATISTICS), ("itl", "gap", ("mean",))):
        for name in names:
            low, high = case.latency(less, name), case.latency(more, name)
            if low is not None and high is not None and low > high and not isclose(low, high, rel_tol=_ROUNDING):
                yield f"{less.upper()} {name.upper()} is {low:g} ms, above {more.upper()} {name.upper()} of {high:g} ms"


def _of_acceptance(found: Acceptance) -> Iterator[str]:
    """Counters of a server may be of moments a little apart."""
    slack, few = (_ROUNDING, 0.5) if found.source == "answers" else (LITTLE, FEW)
    kept, by_place = found.accepted_tokens, sum(found.per_position) * found.drafts
    if found.drafts > found.draft_tokens * (1 + slack) + few:
        yield f"drafts are {found.drafts:g}, and draft_tokens {found.draft_tokens:g}"
    if kept > found.draft_tokens * (1 + slack) + few:
        yield f"accepted_tokens is {kept:g}, and draft_tokens {found.draft_tokens:g}"
    if found.per_position and abs(by_place - kept) > slack * max(by_place, kept) + few:
        yield f"accepted_tokens is {kept:g}, and per_position times drafts {by_place:g}"
    for place, (before, after) in enumerate(pairwise([1.0, *found.per_position])):
        if after > before * (1 + slack) + few / max(found.drafts, 1):
            yield f"per_position has {after:g} at place {place + 1}, and {before:g} before it"


def _of_own_case(case: Case, arm: ArmInfo, options: dict[str, Any]) -> Iterator[str]:
    """What paceline bench serve says beside that."""
    yield from _of_case(case, arm)
    loads, seeds = options.get("loads"), options.get("seeds")
    if isinstance(loads, list) and case.load.label not in loads:
        yield f"the load is not among those of the options ({', '.join(map(str, loads))})"
    if isinstance(seeds, list) and case.num_rounds > len(seeds):
        yield f"{case.num_rounds} rounds, and {len(seeds)} seeds"
    if not 1 <= case.num_rounds <= case.num_requests:
        yield f"{case.num_requests} requests in {case.num_rounds} rounds"
    asked, most = options.get("num_prompts"), options.get("max_tokens")
    if isinstance(asked, int) and not options.get("all_turns") and case.num_requests != asked * case.num_rounds:
        yield f"{case.num_requests} requests in {case.num_rounds} rounds of {asked} prompts"
    answered = case.num_requests - case.num_failed
    if isinstance(most, int) and arm.counting in ENDS_AT_USAGE and case.output_tokens > answered * most:
        yield f"{case.output_tokens} output tokens in {answered} answers of at most {most}"
    if case.num_failed and not case.errors:
        yield f"{case.num_failed} failed, and no error is named"
    if case.slice_seconds and case.slices.tokens > case.output_tokens + 0.5:
        yield f"{case.output_tokens} output tokens, and {case.slices.tokens:.0f} in the slices of the time"
    if case.seconds is not None:
        yield from _of_seconds(case, case.seconds)
    yield from _of_parts(case)


def _of_seconds(case: Case, seconds: float) -> Iterator[str]:
    inside = sum(case.slice_seconds)
    if inside > seconds * (1 + _ROUNDING):
        yield f"seconds is {seconds:g}, and slice_seconds add up to {inside:g}"
    longest, mean = case.latency("e2e", "p99"), case.latency("e2e", "mean")
    if longest is not None and longest / 1e3 > seconds * (1 + _ROUNDING):
        yield f"E2E P99 is {longest:g} ms, and the case took {seconds:g} s"
    if case.load.kind == "users" and mean is not None:
        busy, most = mean / 1e3 * (case.num_requests - case.num_failed), case.load.value * seconds
        if busy > most * (1 + _ROUNDING):
            yield f"answers took {busy:g} s together (E2E), and {case.load.label} had {most:g} s in {seconds:g} s"
        if case.mean_concurrency is not None and case.mean_concurrency > case.load.value * (1 + _ROUNDING):
            yield f"mean_concurrency is {case.mean_concurrency:g}"


def _of_parts(case: Case) -> Iterator[str]:
    """Categories add up to the whole; passes gave what came."""
    whole, parts = case.acceptance, list(case.acceptance_by_category.values())
    names = ("drafts", "draft_tokens", "accepted_tokens")
    yield from _sums(whole, parts, names, "acceptance_by_category")
    yield from _sums(case.passes, list(case.passes_by_category.values()), ("count", "tokens"), "passes_by_category")
    if case.passes is None or (whole is not None and whole.source != "answers") or not case.passes_by_category:
        return
    kept = whole.accepted_tokens if whole is not None else 0
    if case.passes.tokens > case.output_tokens:
        yield f"passes gave {case.passes.tokens:g} tokens of {case.output_tokens}"
    if case.passes.tokens > (case.passes.count + kept) * (1 + _ROUNDING) + case.num_requests:
        yield f"{case.passes.count:g} passes and {kept:g} accepted drafts gave {case.passes.tokens:g} tokens"


def _sums(
    whole: Acceptance | Passes | None, parts: Sequence[Acceptance | Passes], names: Sequence[str], where: str
) -> Iterator[str]:
    for name in names if parts else ():
        said, total = getattr(whole, name, 0.0), sum(getattr(part, name) for part in parts)
        if not isclose(said, total, rel_tol=_ROUNDING):
            yield f"{name} is {said:g}, and {where} add up to {total:g}"


def _of_comparison(compared: Comparison, case: Case, base: Case) -> Iterator[str]:
    yield from _of_estimates(msgspec.to_builtins(compared), "")
    answers = [one.num_requests - one.num_failed for one in (case, base)]
    if compared.num_pairs > min(answers):
        yield f"{compared.num_pairs} pairs of {answers[0]} and {answers[1]} answers"
    if (compared.same_texts or 0) > compared.num_pairs:
        yield f"{compared.same_texts} same texts in {compared.num_pairs} pairs"
    gain = compared.throughput_gain
    if gain is not None:
        if case.load.kind == "rate":
            yield "throughput_gain at a rate of arrivals, which decides the throughput"
        yield from _ratio("throughput_gain", gain, _of(case.output_tok_s), _of(base.output_tok_s), 1 + _ROUNDING)
    is_all = compared.num_pairs in (0, *answers) and answers[0] == answers[1]
    for name, said, metric in (("pace_gain", compared.pace_gain, "tpot"), ("ttft_gain", compared.ttft_gain, "ttft")):
        above, below = base.latency(metric, "mean"), case.latency(metric, "mean")
        if said is not None and is_all and above is not None and below is not None:
            exact = metric == "ttft" or not compared.num_pairs
            yield from _ratio(name, said, above, below, 1 + _ROUNDING if exact else _PAIRED)


def _ratio(name: str, said: Estimate, above: float, below: float, factor: float) -> Iterator[str]:
    if above == 0 == said.value and below > 0:
        return  # as versions before this one wrote it
    if not below > 0 or not 1 / factor <= said.value / max(above / below, 1e-12) <= factor:
        yield f"{name} is {said.value:.6g}, and its sides are {above:.6g} and {below:.6g}"
