"""Runs of any day beside each other.

Each run keeps the gains over its own baseline: its arms took turns. Across runs an arm is held against the baseline
where a run has no other arm, or where the user names the baseline; and an arm that several runs have is held against
itself, which shows how far the runs are from each other. Where they are, no sentence claims a gain across them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from paceline.bench.serve.compare import Verdict, break_even, comparisons, verdict
from paceline.bench.serve.conditions import differences
from paceline.bench.serve.intervals import Estimate
from paceline.bench.serve.records import SCHEMA
from paceline.bench.serve.results import BENCHMARK, BreakEven, Comparison, Results, Source
from paceline.errors import ConfigurationError

_LITTLE = 0.05  # of a ratio without an interval


def combine(parts: Sequence[Results], baseline: str | None) -> Results:
    """All arms in one; names that occur twice get their run's number. `baseline`: what all arms are measured against;
    None: in each run its own, and for runs of one arm the last run's."""
    if len(parts) == 1:
        return _one(parts[0], baseline)
    named = _with_unique_names(parts)
    arms = [arm for part in named for arm in part.arms]
    names = [arm.name for arm in arms]
    base = baseline or named[-1].baseline or names[-1]
    if base not in names:
        raise ConfigurationError(f"--baseline {base}: the arms are {', '.join(names)}.")
    own = [found for part in named for found in _own(part, base if baseline else None)]
    same = _same_arms(parts, named)
    across = _across(named, base, is_asked_for=baseline is not None)
    known = {(c.arm, c.baseline) for c in same}
    shown = [*own, *same, *(c for c in across if (c.arm, c.baseline) not in known)]
    drift = _drift(same)
    claims = break_even(own)
    if not drift:
        claims += [_across_runs(found) for found in break_even([c for c in shown if c.across and c not in same])]
    notes = [note for part in named for note in part.notes]
    notes.append("Several runs: they did not take turns, so what lies between them may be the day's and not the arm's.")
    if not shown:
        notes.append(f"No load was measured both for {base} and for another arm: there is no gain to show.")
    return Results(
        benchmark=BENCHMARK,
        schema=SCHEMA,
        tool=", ".join(dict.fromkeys(part.tool for part in named)),
        environment=named[0].environment,
        options=named[0].options,
        arms=arms,
        baseline=base,
        notes=list(dict.fromkeys(notes)),
        cases=[case for part in named for case in part.cases],
        comparisons=shown,
        break_even=claims,
        sources=[source for part in named for source in part.origins],
        warnings=[line for line in (differences(parts), *drift) if line]
        + [f"Run {number}: {line}" for number, part in enumerate(parts, 1) for line in part.warnings],
    )


def refuse_one_run_twice(names: Sequence[str], parts: Sequence[Results]) -> None:
    """By what was measured, not by where it lies: a copy, or a folder and a file in it, is the same run."""
    seen: dict[object, str] = {}
    for name, part in zip(names, parts, strict=True):
        for key in _measured(part):
            if (before := seen.setdefault(key, name)) != name:
                raise ConfigurationError(
                    f"'{before}' and '{name}' hold the same run: it tells nothing beside itself. Give each run once."
                )


def _measured(part: Results) -> set[object]:
    """What no two runs have alike: seconds are measured to the microsecond."""
    return {
        (part.environment.get("date"), case.load, case.num_requests, case.output_tokens, case.seconds)
        for case in part.cases
        if case.seconds is not None
    }


def _one(part: Results, baseline: str | None) -> Results:
    if baseline in (None, part.baseline):
        return part
    names = [arm.name for arm in part.arms]
    if baseline not in names:
        raise ConfigurationError(f"--baseline {baseline}: the arms are {', '.join(names)}.")
    compared = comparisons(part.cases, {}, baseline, greedy=False)
    return msgspec.structs.replace(part, baseline=baseline, comparisons=compared, break_even=break_even(compared))


def _own(part: Results, baseline: str | None) -> list[Comparison]:
    """As the run's own file has them, with pairs of requests, unless another of its arms is the baseline asked for."""
    if baseline in (None, part.baseline) or baseline not in {arm.name for arm in part.arms}:
        return part.comparisons
    return comparisons(part.cases, {}, baseline, greedy=False)


def _across(named: Sequence[Results], base: str, *, is_asked_for: bool) -> list[Comparison]:
    home = next(part for part in named if any(arm.name == base for arm in part.arms))
    others = [
        part for part in named if part is not home and (is_asked_for or not part.comparisons or not home.comparisons)
    ]
    cases = [case for part in others for case in part.cases] + home.of(base)
    return [_marked(found) for found in comparisons(cases, {}, base, greedy=False)]


def _same_arms(parts: Sequence[Results], named: Sequence[Results]) -> list[Comparison]:
    """Every arm that several runs have, of each of them over the last one."""
    found = []
    runs: dict[str, list[tuple[Results, str]]] = {}
    for part, new in zip(parts, named, strict=True):
        for before, after in zip(part.arms, new.arms, strict=True):
            runs.setdefault(before.name, []).append((new, after.name))
    for places in runs.values():
        last = places[-1]
        for part, name in places[:-1]:
            cases = [*part.of(name), *last[0].of(last[1])]
            found += [_marked(one) for one in comparisons(cases, {}, last[1], greedy=False)]
    return found


def _marked(found: Comparison) -> Comparison:
    return msgspec.structs.replace(found, across=True)


def _drift(same: Sequence[Comparison]) -> list[str]:
    """How far the runs are from each other, by what they have in common; nothing where that is within its interval."""
    found = []
    for arm, last in dict.fromkeys((c.arm, c.baseline) for c in same):
        own = [c for c in same if (c.arm, c.baseline) == (arm, last)]
        far = [
            f"{c.gain.value:.2f}x {c.gain_words.removeprefix('gain ')} at {c.load.label}"
            for c in own
            if c.gain is not None and _is_far(c.gain)
        ]
        if far:
            found.append(
                f"THE SAME ARM DIFFERS BETWEEN THE RUNS: {arm} over {last}: {', '.join(far)}. A gain across these runs "
                "is not speculation's alone, and none is claimed."
            )
    return found


def _is_far(gain: Estimate) -> bool:
    if gain.low is None or gain.high is None:
        return abs(gain.value - 1) > _LITTLE
    return verdict(gain) in (Verdict.MORE, Verdict.FEWER)


def _across_runs(found: BreakEven) -> BreakEven:
    return msgspec.structs.replace(found, words=f"Across runs, which did not take turns: {found.words}")


def _with_unique_names(parts: Sequence[Results]) -> list[Results]:
    often = Counter(arm.name for part in parts for arm in part.arms)
    return [
        _renamed(part, {a.name: f"{a.name} ({number})" if often[a.name] > 1 else a.name for a in part.arms})
        for number, part in enumerate(parts, 1)
    ]


def _renamed(part: Results, new: dict[str, str]) -> Results:
    replace = msgspec.structs.replace
    compared = [replace(c, arm=new[c.arm], baseline=new[c.baseline]) for c in part.comparisons]
    return replace(
        part,
        arms=[replace(arm, name=new[arm.name]) for arm in part.arms],
        cases=[replace(case, arm=new[case.arm]) for case in part.cases],
        baseline=new.get(part.baseline or ""),
        comparisons=compared,
        sources=[Source(s.tool, s.environment, s.options, [new[name] for name in s.arms]) for s in part.origins],
    )
