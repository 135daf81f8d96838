"""Results of any day and of several tools, read from files and put beside each other."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from paceline.bench.serve import guidellm, vllm_bench
from paceline.bench.serve.compare import break_even, comparisons
from paceline.bench.serve.records import SCHEMA, read_raw
from paceline.bench.serve.results import BENCHMARK, Results, Source, is_own, own_results
from paceline.bench.serve.summary import summarize
from paceline.errors import ConfigurationError


def read_results(path: Path) -> Results:
    """bench.json or requests.jsonl of paceline bench serve, GuideLLM's or vllm bench serve's JSON.

    Raises ConfigurationError that says what the file is not.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}.") from None
    if path.suffix == ".jsonl" and '"kind":"run"' in text[: text.find("\n")]:
        return summarize(read_raw(path))
    contents = _objects(path, text)
    try:
        if is_own(contents[0]):
            return own_results(contents[0])
        if guidellm.is_guidellm(contents[0]):
            return guidellm.read(contents[0], path)
        if vllm_bench.is_vllm(contents[0]):
            return vllm_bench.read(contents, path)
    except (msgspec.ValidationError, KeyError, TypeError, ValueError, IndexError) as error:
        raise ConfigurationError(
            f"{path} looks like a benchmark's result, but not like one of this version: {error!r}."
        ) from None
    raise ConfigurationError(
        f"{path} is no result of paceline bench serve, GuideLLM or vllm bench serve (with --save-result)."
    )


def _objects(path: Path, text: str) -> list[Any]:
    """One JSON document, or one a line (vllm bench serve --append-result)."""
    try:
        return [json.loads(text)]
    except ValueError:
        pass
    try:
        found = [json.loads(line) for line in text.splitlines() if line.strip()]
    except ValueError as error:
        raise ConfigurationError(f"{path} is not JSON: {error}.") from None
    if not found:
        raise ConfigurationError(f"{path} is empty.")
    return found


def combine(parts: Sequence[Results], baseline: str | None) -> Results:
    """All arms in one; names that occur twice get their part's number. Gains are over one baseline for all: the one
    named, or the last part's."""
    if len(parts) == 1 and baseline in (None, parts[0].baseline):
        return parts[0]
    named = _with_unique_names(parts)
    cases = [case for part in named for case in part.cases]
    arms = [arm for part in named for arm in part.arms]
    names = [arm.name for arm in arms]
    base = baseline or named[-1].baseline or (names[-1] if len(names) > 1 else None)
    if base is not None and base not in names:
        raise ConfigurationError(f"--baseline {base}: the arms are {', '.join(names)}.")
    compared = comparisons(cases, {}, base, greedy=False)
    notes = [note for part in named for note in part.notes]
    if len(parts) > 1:
        notes.append(
            "Several runs: they did not take turns, so what lies between them may be the day's and not the arm's."
        )
        if not compared:
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
        cases=cases,
        comparisons=compared,
        break_even=break_even(compared),
        sources=[source for part in named for source in part.origins],
    )


def _with_unique_names(parts: Sequence[Results]) -> list[Results]:
    often = Counter(arm.name for part in parts for arm in part.arms)
    found = []
    for number, part in enumerate(parts, 1):
        new = {arm.name: f"{arm.name} ({number})" if often[arm.name] > 1 else arm.name for arm in part.arms}
        found.append(
            msgspec.structs.replace(
                part,
                arms=[msgspec.structs.replace(arm, name=new[arm.name]) for arm in part.arms],
                cases=[msgspec.structs.replace(case, arm=new[case.arm]) for case in part.cases],
                baseline=new.get(part.baseline or ""),
                sources=[
                    Source(s.tool, s.environment, s.options, [new[name] for name in s.arms]) for s in part.origins
                ],
            )
        )
    return found
