"""Which charts a report has. A chart whose figures are missing is left out; what is missing is said in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paceline.bench.page.chart import Chart, Series
from paceline.bench.page.tables import in_words
from paceline.bench.serve.intervals import Estimate
from paceline.bench.serve.results import Case, Comparison, Passes, Results

_LATENCIES = {
    "ttft": ("Time to the first token (TTFT)", "TTFT in ms"),
    "tpot": ("Time a token, by request (TPOT)", "TPOT in ms"),
    "itl": ("Time between tokens (ITL)", "ITL in ms"),
    "e2e": ("Whole answer (E2E)", "E2E in ms"),
}
_SHOWN = ("p50", "p99")
_AXES = {"users": "concurrent users", "rate": "requests a second (Poisson arrivals)"}


def charts(results: Results) -> list[Chart]:
    found: list[Chart] = []
    kinds = list(dict.fromkeys(case.load.kind for case in results.cases))
    found += _gains(results)
    if "users" in kinds:
        found.append(_throughput(results))
    found += _pareto(results)
    for kind in kinds:
        found += [chart for metric in _LATENCIES for chart in _latency(results, metric, kind)]
    if _has_objectives(results):
        found += [_goodput(results, kind) for kind in kinds]
    found += [*_acceptance(results), *_time_split(results)]
    for kind in kinds:
        found += _cost(results, kind)
    return found


def _has_objectives(results: Results) -> bool:
    return any(case.goodput_share is not None for case in results.cases)


def _series(name: str, colour: int, points: Sequence[tuple[float, Estimate | None]], *, dashed: bool = False) -> Series:
    known = sorted((x, value) for x, value in points if value is not None) if points else []
    known.sort(key=lambda point: point[0])
    return Series(
        name,
        [x for x, _ in known],
        [value.value for _, value in known],
        [value.low for _, value in known],
        [value.high for _, value in known],
        colour=colour,
        dashed=dashed,
    )


def _gains(results: Results) -> list[Chart]:
    """The start chart: what speculation gives, by users."""
    pairs = {(c.arm, c.baseline): in_words(c) for c in results.comparisons}
    users = [c for c in results.comparisons if c.load.kind == "users"]

    def lines(value: Callable[[Comparison], Estimate | None], of: Sequence[Comparison]) -> list[Series]:
        found = []
        for place, ((arm, baseline), words) in enumerate(pairs.items()):
            own = [(c.load.value, value(c)) for c in of if (c.arm, c.baseline) == (arm, baseline)]
            found.append(_series(words, place, own))
        return [series for series in found if series.x]

    found = []
    gains = lines(lambda c: c.throughput_gain, users)
    if gains:
        claims = " ".join([*results.warnings, *(found.words for found in results.break_even)])
        found.append(
            Chart(
                "Throughput gain against concurrent users",
                _AXES["users"],
                "output tok/s over the baseline's (times)",
                gains,
                x_log2=True,
                level=(1.0, "break-even"),
                text=f"Above 1 the arm gives more tokens a second in all. Bars: 95 % intervals. {claims}",
                ticks=_loads(users),
            )
        )
    rates = [c for c in results.comparisons if c.load.kind == "rate"]
    for kind, of in (("users", users), ("rate", rates)):
        pace = lines(lambda c: c.pace_gain, of)
        if pace:
            found.append(
                Chart(
                    f"Pace of an answer against {'users' if kind == 'users' else 'rate'}",
                    _AXES[kind],
                    "mean TPOT of the baseline over the arm's (times)",
                    pace,
                    x_log2=kind == "users",
                    level=(1.0, "as fast"),
                    text="Above 1 an answer comes faster once it has begun. Bars: 95 % intervals.",
                    ticks=_loads(of) if kind == "users" else (),
                )
            )
    return found


def _loads(rows: Sequence[Comparison] | Sequence[Case]) -> list[float]:
    return sorted({row.load.value for row in rows})


def _throughput(results: Results) -> Chart:
    series = []
    for place, arm in enumerate(results.arms):
        own = [(c.load.value, c.output_tok_s) for c in results.of(arm.name) if c.load.kind == "users"]
        series.append(_series(arm.name, place, own))
    return Chart(
        "Throughput against concurrent users",
        _AXES["users"],
        "output tok/s, all users together",
        [one for one in series if one.x],
        x_log2=True,
        text="While every user had a request under way. Bars: 95 % intervals.",
        ticks=_loads([case for case in results.cases if case.load.kind == "users"]),
    )


def _pareto(results: Results) -> list[Chart]:
    per_gpu = bool(results.arms) and all(arm.num_gpus for arm in results.arms)
    series = []
    for place, arm in enumerate(results.arms):
        points = [
            (case.interactivity_tok_s.value, speed.value, case.load.label)
            for case in results.of(arm.name)
            if case.interactivity_tok_s and (speed := case.per_gpu_tok_s if per_gpu else case.output_tok_s)
        ]
        if points:
            xs, ys, labels = zip(*points, strict=True)
            series.append(Series(arm.name, xs, ys, colour=place, labels=labels))
    if not series:
        return []
    return [
        Chart(
            "Throughput against interactivity",
            "tok/s for one user (1 / median TPOT)",
            "output tok/s for each GPU" if per_gpu else "output tok/s, all users together",
            series,
            text="Each point is a load. Further right: faster for one user. Further up: more for the hardware. A "
            "curve that lies above and to the right of another is better at every load.",
        )
    ]


def _latency(results: Results, metric: str, kind: str) -> list[Chart]:
    title, y_title = _LATENCIES[metric]
    series = []
    for place, arm in enumerate(results.arms):
        own = [case for case in results.of(arm.name) if case.load.kind == kind]
        for statistic in _SHOWN:
            points = [(case.load.value, case.latency_ms.get(metric, {}).get(statistic)) for case in own]
            series.append(_series(f"{arm.name}, {statistic.upper()}", place, points, dashed=statistic != _SHOWN[0]))
    series = [one for one in series if one.x]
    if not series:
        return []
    by = "" if kind == "users" else ", by arrivals"
    cases = [case for case in results.cases if case.load.kind == kind]
    return [
        Chart(
            f"{title}{by}", _AXES[kind], y_title, series, x_log2=kind == "users",
            ticks=_loads(cases) if kind == "users" else (),
            text="Median and 99th percentile over requests (ITL: over tokens). Every percentile is in the table.",
        )
    ]  # fmt: skip


def _goodput(results: Results, kind: str) -> Chart:
    series = []
    for place, arm in enumerate(results.arms):
        own = [(c.load.value, c.goodput_share) for c in results.of(arm.name) if c.load.kind == kind]
        series.append(_series(arm.name, place, own))
    objectives = dict(pair for s in results.origins for pair in (s.options.get("goodput") or {}).items())
    words = ", ".join(f"{name.upper()} ≤ {limit:g} ms" for name, limit in objectives.items())
    return Chart(
        f"Requests within the objectives{'' if kind == 'users' else ', by arrivals'}",
        _AXES[kind],
        "share of requests",
        series,
        x_log2=kind == "users",
        text=f"Objectives: {words}.",
        ticks=_loads([c for c in results.cases if c.load.kind == kind]) if kind == "users" else (),
    )


def _acceptance(results: Results) -> list[Chart]:
    """Over all loads of an arm: what is accepted depends on texts, hardly on the load."""
    by_place, by_category = [], []
    for colour, arm in enumerate(results.arms):
        known = [case for case in results.of(arm.name) if case.acceptance is not None]
        if not known:
            continue
        parts = [(case.acceptance, case.acceptance.drafts) for case in known if case.acceptance is not None]
        length = max(len(acceptance.per_position) for acceptance, _ in parts)
        total = sum(drafts for _, drafts in parts) or 1
        shares = [
            sum(a.per_position[place] * drafts for a, drafts in parts if place < len(a.per_position)) / total
            for place in range(length)
        ]
        if shares:
            by_place.append(Series(arm.name, [str(place + 1) for place in range(length)], shares, colour=colour))
        categories = sorted({name for case in known for name in case.passes_by_category})
        if len(categories) > 1:
            lengths = [_mean_length(known, name) for name in categories]
            by_category.append(Series(arm.name, categories, lengths, colour=colour))
    found = []
    if by_place:
        found.append(
            Chart(
                "Acceptance by position", "position in the draft", "share of drafted passes that kept it", by_place,
                kind="bars", text="A draft is kept only if those before it were; all loads together.",
            )
        )  # fmt: skip
    if by_category:
        found.append(
            Chart(
                "Tokens a target pass by category of prompt", "category", "tokens a target pass", by_category,
                kind="bars", level=(1.0, "nothing accepted"),
                text="Over all decoding passes of an answer, with drafts or without; all loads.",
            )
        )  # fmt: skip
    return found


def _mean_length(cases: Sequence[Case], category: str) -> float:
    parts = [case.passes_by_category[category] for case in cases if category in case.passes_by_category]
    return Passes(sum(part.count for part in parts), sum(part.tokens for part in parts)).tokens_a_pass


def _time_split(results: Results) -> list[Chart]:
    cases = [case for case in results.cases if sum(case.step_seconds.values()) > 0]
    if not cases:
        return []
    names = list(dict.fromkeys(name for case in cases for name in case.step_seconds))
    labels = [f"{case.arm}, {case.load.label}" for case in cases]
    series = [
        Series(name, labels, [case.step_seconds.get(name, 0.0) / sum(case.step_seconds.values()) for case in cases],
               colour=place)
        for place, name in enumerate(names)
    ]  # fmt: skip
    return [
        Chart(
            "Where the time of the server's steps went", "", "share of step time", series, kind="stacked",
            text="From the server's own counters while a case ran; host: what is in none of the other parts.",
        )
    ]  # fmt: skip


def _cost(results: Results, kind: str) -> list[Chart]:
    series = []
    for place, arm in enumerate(results.arms):
        own = [(c.load.value, c.usd_per_million_tokens) for c in results.of(arm.name) if c.load.kind == kind]
        series.append(_series(arm.name, place, own))
    series = [one for one in series if one.x]
    if not series:
        return []
    prices = ", ".join(f"{arm.name} ${arm.price_per_hour:g} an hour" for arm in results.arms if arm.price_per_hour)
    cases = [c for c in results.cases if c.load.kind == kind]
    return [
        Chart(
            f"Cost of output{'' if kind == 'users' else ', by arrivals'}", _AXES[kind],
            "US dollars a million output tokens", series, x_log2=kind == "users",
            text=f"Hardware alone, kept at this load: {prices}.", ticks=_loads(cases) if kind == "users" else (),
        )
    ]  # fmt: skip
