"""Records -> figures. Pure: the same requests.jsonl gives the same bench.json on any machine."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from paceline.bench.serve import latency
from paceline.bench.serve.arrival_notes import arrival_notes
from paceline.bench.serve.compare import break_even, comparisons
from paceline.bench.serve.drift import drift
from paceline.bench.serve.intervals import Estimate, among_rounds, estimate, few_answers, percentile, rate
from paceline.bench.serve.passes import passes_of
from paceline.bench.serve.records import SCHEMA, ArmInfo, CaseSpan, Counts, Load, Raw, Record
from paceline.bench.serve.results import BENCHMARK, OWN_TOOL, STATISTICS, Acceptance, Case, Results
from paceline.bench.serve.wholeness import whole

Key = tuple[str, Load]
_LATE_US = 10_000
_MOST_REASONS = 6
_SPLIT = ("draft", "verify", "accept")
_CLUSTERED = ("itl", "gap")  # values of one request hang together: no interval from them as if they did not


def summarize(raw: Raw) -> Results:
    header, cut = raw.header, raw.is_cut
    raw, incomplete = whole(raw)
    if cut:
        incomplete.insert(0, "The last line of requests.jsonl has no end: it was being written, and is left out.")
    records: dict[Key, list[Record]] = defaultdict(list)
    spans: dict[Key, list[CaseSpan]] = defaultdict(list)
    for record in raw.records:
        records[record.arm, record.load].append(record)
    for span in raw.spans:
        spans[span.arm, span.load].append(span)
    arms = {arm.name: arm for arm in header.arms}
    objectives = header.options.get("goodput") or {}
    loads = list(dict.fromkeys(span.load for span in raw.spans))
    cases = [
        _case(arm, load, records[name, load], spans[name, load], objectives)
        for load in loads
        for name, arm in arms.items()
        if (name, load) in spans
    ]
    compared = comparisons(cases, records, header.baseline, greedy=header.options.get("temperature") == 0)
    return Results(
        benchmark=BENCHMARK,
        schema=SCHEMA,
        tool=OWN_TOOL,
        environment=header.environment,
        options=header.options,
        arms=header.arms,
        baseline=header.baseline,
        notes=[*header.notes, *incomplete, *_notes(raw, cases)],
        cases=cases,
        comparisons=compared,
        break_even=break_even(compared),
        warnings=drift(records, header.baseline, compared),
    )


def _case(
    arm: ArmInfo, load: Load, records: Sequence[Record], spans: Sequence[CaseSpan], objectives: Mapping[str, float]
) -> Case:
    good = latency.answered(records)
    windows = [found for span in spans if (found := latency.window(span, _of(span, records))) is not None]
    slices = latency.slices(windows)
    by_round = [_of(span, records) for span in spans]
    speed = among_rounds(rate(slices), slices.by_round)
    if speed is not None and len(good) < few_answers(_users(load)):
        speed = Estimate(speed.value)
    seconds = sum(span.end_us - span.start_us for span in spans) / 1e6
    concurrency = latency.mean_concurrency(spans, records)
    users = load.value if load.kind == "users" else concurrency
    values = latency.samples(records)
    of_rounds = [latency.samples(some) for some in by_round]
    latencies = {
        name: _statistics(name, sample, [samples[name] for samples in of_rounds if len(samples[name])])
        for name, sample in values.items()
        if len(sample)
    }
    median = latencies.get("tpot", {}).get("p50")
    share = _share(by_round, objectives) if objectives else None
    case = Case(
        arm=arm.name,
        load=load,
        num_rounds=len(spans),
        num_requests=len(records),
        num_failed=len(records) - len(good),
        output_tokens=sum(record.num_tokens for record in good),
        prompt_tokens=_sum(good, "prompt_tokens"),
        cached_tokens=_sum(good, "cached_tokens"),
        seconds=seconds,
        mean_concurrency=concurrency,
        requests_per_second=len(good) / seconds if seconds else None,
        output_tok_s=speed,
        per_user_tok_s=_scaled(speed, 1 / users) if users else None,
        per_gpu_tok_s=_scaled(speed, 1 / arm.num_gpus) if arm.num_gpus else None,
        interactivity_tok_s=_inverse(median, 1e3),
        usd_per_million_tokens=_inverse(speed, arm.price_per_hour / 3600 * 1e6) if arm.price_per_hour else None,
        goodput_share=share,
        goodput_requests_per_second=share.value * len(records) / seconds if share and seconds else None,
        latency_ms=latencies,
        step_seconds=_step_seconds(spans),
        slice_rates=slices.rates.tolist(),
        slice_seconds=slices.seconds.tolist(),
        errors=dict(Counter(record.error for record in records if record.error)),
    )
    _add_acceptance(case, good, spans)
    case.passes, case.passes_by_category = passes_of(good, spans)
    return case


def _users(load: Load) -> float | None:
    return load.value if load.kind == "users" else None


def _of(span: CaseSpan, records: Sequence[Record]) -> list[Record]:
    return [record for record in records if record.round == span.round]


def _sum(records: Sequence[Record], name: str) -> int | None:
    values = [getattr(record, name) for record in records]
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _share(by_round: Sequence[Sequence[Record]], objectives: Mapping[str, float]) -> Estimate | None:
    """Of requests within the objectives."""
    rounds = [np.asarray([latency.is_good(r, objectives) for r in some], dtype=float) for some in by_round]
    found = estimate(np.concatenate(rounds)) if rounds else None
    return among_rounds(found, [float(good.mean()) for good in rounds if len(good)], most=1.0)


def _statistics(name: str, sample: latency.Values, by_round: Sequence[latency.Values]) -> dict[str, Estimate]:
    found = {}
    for statistic in STATISTICS:
        q = None if statistic == "mean" else float(statistic[1:])

        def of(values: latency.Values, q: float | None = q) -> float:
            return float(values.mean() if q is None else np.percentile(values, q))

        if name in _CLUSTERED:
            found[statistic] = Estimate(of(sample))
        else:
            value = among_rounds(estimate(sample) if q is None else percentile(sample, q), [*map(of, by_round)])
            assert value is not None
            found[statistic] = value
    return found


def _scaled(value: Estimate | None, factor: float) -> Estimate | None:
    if value is None:
        return None
    edges = [None if edge is None else edge * factor for edge in (value.low, value.high)]
    return Estimate(value.value * factor, *edges)


def _inverse(value: Estimate | None, above: float) -> Estimate | None:
    """above / value, its edges exchanged."""
    if value is None or not value.value > 0:
        return None
    low, high = (None if not edge else above / edge for edge in (value.high, value.low))
    return Estimate(above / value.value, low, high)


def _step_seconds(spans: Sequence[CaseSpan]) -> dict[str, float]:
    total: Counter[str] = Counter()
    for span in spans:
        total.update({name: span.counters.get(f"{name}_seconds", 0.0) for name in (*_SPLIT, "step")})
    if not total["step"]:
        return {}
    parts = {name: total[name] for name in _SPLIT}
    return parts | {"host": max(0.0, total["step"] - sum(parts.values()))}


def _add_acceptance(case: Case, records: Sequence[Record], spans: Sequence[CaseSpan]) -> None:
    said = [(record.category, record.speculation) for record in records if record.speculation is not None]
    if said:
        case.acceptance = _acceptance([counts for _, counts in said])
        categories = sorted({category for category, _ in said})
        case.acceptance_by_category = {
            name: _acceptance([counts for category, counts in said if category == name]) for name in categories
        }
    else:
        counted = [
            Counts(
                int(span.counters.get("drafts", 0)),
                int(span.counters.get("draft_tokens", 0)),
                int(span.counters.get("accepted_tokens", 0)),
                [int(count) for count in span.accepted_per_position],
            )
            for span in spans
        ]
        case.acceptance = _acceptance(counted, source="counters")
    if not case.acceptance.drafts:
        case.acceptance, case.acceptance_by_category = None, {}


def _acceptance(counts: Sequence[Counts], source: str = "answers") -> Acceptance:
    drafts = sum(count.drafts for count in counts)
    length = max((len(count.accepted_per_position) for count in counts), default=0)
    kept = [
        sum(c.accepted_per_position[place] for c in counts if place < len(c.accepted_per_position))
        for place in range(length)
    ]
    return Acceptance(
        drafts=drafts,
        draft_tokens=sum(count.draft_tokens for count in counts),
        accepted_tokens=sum(count.accepted_tokens for count in counts),
        per_position=[count / drafts if drafts else 0.0 for count in kept],
        source=source,
    )


def _failures(cases: Sequence[Case]) -> list[str]:
    """A line for each reason, with the cases that it met."""
    by_reason: dict[str, list[str]] = {}
    for case in cases:
        for reason, count in case.errors.items():
            where = f"{count} of {case.num_requests} requests of {case.arm} at {case.load.label}"
            by_reason.setdefault(reason, []).append(where)
    found = [f"Failed and left out: {'; '.join(places)}: {reason}" for reason, places in by_reason.items()]
    others = len(found) - _MOST_REASONS
    return [
        *found[:_MOST_REASONS],
        *([f"Requests failed for {others} other reasons too (bench.json)."] if others > 0 else []),
    ]


def _notes(raw: Raw, cases: Sequence[Case]) -> list[str]:
    found = _failures(cases)
    late = [record for record in raw.records if record.lag_us > _LATE_US]
    if late:
        requests = "1 request was" if len(late) == 1 else f"{len(late)} requests were"
        found.append(f"{requests} sent more than 10 ms after the arrival time: this client was late.")
    odd = [r for r in raw.records if not r.error and r.completion_tokens not in (None, r.num_tokens)]
    if odd:
        answers = "1 answer" if len(odd) == 1 else f"{len(odd)} answers"
        found.append(
            f"{answers} carried another number of tokens in the chunks than in the usage: for example "
            f"{odd[0].num_tokens} and {odd[0].completion_tokens}."
        )
    if cases and all(case.num_rounds == 1 for case in cases) and len(raw.header.arms) > 1:
        found.append(
            "One round: what an arm's turn owes to its moment cannot be told from one, so intervals are wide. "
            "--seeds 0,1,2 makes them much narrower."
        )
    few = [
        f"{case.arm} at {case.load.label} ({case.num_requests - case.num_failed} of {least})"
        for case in cases
        if case.num_requests - case.num_failed < (least := few_answers(_users(case.load)))
    ]
    if few:
        found.append(f"Too few answers for an interval of tokens a second: {', '.join(few)}. More: --num-prompts.")
    found += arrival_notes(raw.spans)
    preempted = sum(span.counters.get("preemptions", 0) for span in raw.spans)
    if preempted:
        sequences = "1 sequence was" if preempted == 1 else f"{preempted:g} sequences were"
        found.append(f"{sequences} preempted for want of KV blocks: the server's cache is small.")
    return found
