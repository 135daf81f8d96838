"""Results of any day and of several tools, read from files and put beside each other."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import msgspec

from paceline.bench.files import read_text
from paceline.bench.serve import guidellm, vllm_bench
from paceline.bench.serve.compare import break_even, comparisons
from paceline.bench.serve.records import SCHEMA, read_raw
from paceline.bench.serve.results import BENCHMARK, Results, Source, is_own, own_results
from paceline.bench.serve.summary import summarize
from paceline.errors import ConfigurationError

_LARGEST = 1e15  # of tokens, milliseconds, dollars


def read_results(path: Path) -> Results:
    """bench.json or requests.jsonl of paceline bench serve, or its folder; GuideLLM's or vllm bench serve's JSON.

    Raises ConfigurationError that says what the file is not.
    """
    path = path / "bench.json" if path.is_dir() else path
    text = read_text(path)
    try:
        found = _read(path, text)
    except ConfigurationError:
        raise
    except (msgspec.ValidationError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise ConfigurationError(
            f"{path} looks like a benchmark's result, but not like one of this version: {error!r}."
        ) from None
    if found is None:
        raise ConfigurationError(
            f"{path} is no result of paceline bench serve, GuideLLM or vllm bench serve (with --save-result)."
        )
    if not found.cases:
        raise ConfigurationError(f"{path} holds no complete case: the run was cut short before the first was over.")
    return found


def _read(path: Path, text: str) -> Results | None:
    """None: of no kind that is known. Raises what such files bring when they are damaged."""
    if path.suffix == ".jsonl" and '"kind":"run"' in text[: text.find("\n")]:
        return _sound(summarize(read_raw(path)))
    contents = _objects(path, text)
    if is_own(contents[0]):
        return _sound(own_results(contents[0]))
    if guidellm.is_guidellm(contents[0]):
        return _sound(guidellm.read(contents[0], path))
    if vllm_bench.is_vllm(contents[0]):
        return _sound(vllm_bench.read(contents, path))
    return None


def _sound(results: Results) -> Results:
    """Raises ValueError where parts do not fit each other, or a figure is of another kind or size than any measured."""
    content = msgspec.to_builtins(results)
    _check_sizes({name: content[name] for name in ("arms", "cases", "comparisons", "break_even")})
    results = msgspec.convert(content, Results)
    names = [arm.name for arm in results.arms]
    for case in results.cases:
        if case.arm not in names:
            raise ValueError(f"a case of the arm {case.arm!r}, which is not among {names}")
        if not 0 < case.load.value < float("inf"):
            raise ValueError(f"a load of {case.load.value}")
    if len(set(names)) < len(names) or (results.baseline is not None and results.baseline not in names):
        raise ValueError(f"arms {names} and the baseline {results.baseline!r}")
    return results


def _check_sizes(part: Any) -> None:
    if isinstance(part, dict | list):
        for value in part.values() if isinstance(part, dict) else part:
            _check_sizes(value)
    elif isinstance(part, int | float) and not abs(part) <= _LARGEST:
        raise ValueError("a figure beyond anything that can be measured")


def _objects(path: Path, text: str) -> list[Any]:
    """One JSON document, or one a line (vllm bench serve --append-result)."""
    try:
        return [_load(text)]
    except (ValueError, RecursionError):
        pass
    try:
        found = [_load(line) for line in text.splitlines() if line.strip()]
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} is not JSON: {error}.") from None
    if not found:
        raise ConfigurationError(f"{path} is empty.")
    return found


def _load(text: str) -> Any:
    """NaN and infinity are no JSON, and no figure."""
    return json.loads(text, parse_constant=_finite, parse_float=_finite)


def _finite(word: str) -> float:
    value = float(word)
    if not isfinite(value):
        raise ValueError(f"{word} is not a finite number")
    return value


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
