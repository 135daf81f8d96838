"""Results of any day and of several tools, read from files; across.py puts them beside each other."""

from __future__ import annotations

import json
from math import isfinite
from pathlib import Path
from typing import Any

import msgspec

from paceline.bench.digests import of_document
from paceline.bench.files import read_text
from paceline.bench.serve import guidellm, vllm_bench
from paceline.bench.serve.anew import RAW_NAME, derived_anew, without_digest
from paceline.bench.serve.compare import break_even
from paceline.bench.serve.records import read_raw
from paceline.bench.serve.result_relations import contradictions
from paceline.bench.serve.results import Results, is_own, own_results
from paceline.bench.serve.summary import summarize
from paceline.errors import ConfigurationError
from paceline.json_text import numbered_lines

_LARGEST = 1e15  # of tokens, milliseconds, dollars


def read_results(path: Path) -> Results:
    """bench.json or requests.jsonl of paceline bench serve, or its folder; GuideLLM's or vllm bench serve's JSON.

    Raises ConfigurationError that says what the file is not.
    """
    path = _in_folder(path) if path.is_dir() else path
    text = read_text(path)
    try:
        found = _read(path, text)
    except ConfigurationError:
        raise
    except (msgspec.ValidationError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise ConfigurationError(
            f"{path} looks like a benchmark's result, but not like one of this version: {_in_words(error)}."
        ) from None
    if found is None:
        raise ConfigurationError(
            f"{path} is no result of paceline bench serve, GuideLLM or vllm bench serve (with --save-result)."
        )
    if not found.cases:
        raise ConfigurationError(f"{path} holds no complete case: the run was cut short before the first was over.")
    if problem := next(contradictions(found), ""):
        raise ConfigurationError(f"{path}: {problem}. The file was edited or cut; run it again.")
    if found.digest is not None and found.digest != of_document(_objects(path, text)[0]):
        raise ConfigurationError(
            f"{path} was changed after it was written, so its figures are not those that were measured. Run it again; "
            f"or report the {RAW_NAME} of the run, which all of them are derived from."
        )
    return found


def _in_folder(folder: Path) -> Path:
    """Of a run that was killed there is no bench.json."""
    results, raw = folder / "bench.json", folder / RAW_NAME
    return raw if raw.is_file() and not results.exists() else results


def _read(path: Path, text: str) -> Results | None:
    """None: of no kind that is known. Raises what such files bring when they are damaged."""
    if _is_raw(text):
        raw = read_raw(path)
        found = _sound(summarize(raw))
        return found if raw.header.digest else without_digest(found, path)
    contents = _objects(path, text)
    if is_own(contents[0]):
        stored = _sound(_of_earlier_version(own_results(contents[0])))
        if (anew := derived_anew(path, stored)) is not None:
            return anew
        alone = msgspec.structs.replace(stored, break_even=break_even(stored.comparisons))
        return alone if stored.digest else without_digest(alone, path)
    if guidellm.is_guidellm(contents[0]):
        return _sound(guidellm.read(contents[0], path))
    if vllm_bench.is_vllm(contents[0]):
        return _sound(vllm_bench.read(contents, path))
    if isinstance(contents[0], dict) and contents[0].get("benchmark") == "offline":
        raise ConfigurationError(
            f"{path} is a document of paceline bench offline, whose tables are what it printed: there is no report of "
            "it. 'paceline plan --calibration' reads it."
        )
    return None


def _is_raw(text: str) -> bool:
    """Whether the first line is the header of a run, however its JSON is spaced."""
    try:
        first = json.loads(text.partition("\n")[0])
    except (ValueError, RecursionError):
        return False
    return isinstance(first, dict) and first.get("kind") == "run"


def _of_earlier_version(results: Results) -> Results:
    if any(case.acceptance and not case.passes for case in results.cases):
        results.notes.append(
            "tok/pass is left out: a bench.json of an earlier version knows the passes with drafts alone. With its "
            "requests.jsonl beside it, it is derived anew."
        )
    if any(case.num_rounds > 1 and case.slice_rates and not case.slice_seconds for case in results.cases):
        results.notes.append(
            "tok/s comes from a bench.json of an earlier version: the mean of its rounds' speeds, not all tokens over "
            "all seconds. With its requests.jsonl beside it, it is derived anew."
        )
    return results


def _sound(results: Results) -> Results:
    """Raises ValueError where parts do not fit each other, or a figure is of another kind or size than any measured."""
    content = msgspec.to_builtins(results)
    _check_sizes({name: content[name] for name in ("arms", "cases", "comparisons", "break_even")})
    _check_signs(content["cases"])
    results = msgspec.convert(content, Results)
    names = [arm.name for arm in results.arms]
    for compared in results.comparisons:
        if not {compared.arm, compared.baseline} <= set(names):
            raise ValueError(f"a comparison of {compared.arm!r} with {compared.baseline!r}, not among {names}")
    for case in results.cases:
        if case.arm not in names:
            raise ValueError(f"a case of the arm {case.arm!r}, which is not among {names}")
        if not 0 <= case.num_failed < case.num_requests:
            raise ValueError(f"{case.num_failed} failed of {case.num_requests} requests, so that nothing was measured")
        if not 0 < case.load.value < float("inf"):
            raise ValueError(f"a load of {case.load.value}")
        if case.slice_seconds and (len(case.slice_seconds) != len(case.slice_rates) or min(case.slice_seconds) <= 0):
            raise ValueError("slice_seconds that do not fit slice_rates")
    if len(set(names)) < len(names) or (results.baseline is not None and results.baseline not in names):
        raise ValueError(f"arms {names} and the baseline {results.baseline!r}")
    return results


def _check_sizes(part: Any) -> None:
    if isinstance(part, dict | list):
        for value in part.values() if isinstance(part, dict) else part:
            _check_sizes(value)
    elif isinstance(part, int | float) and not abs(part) <= _LARGEST:
        raise ValueError("a figure beyond anything that can be measured")


def _check_signs(part: Any, name: str = "") -> None:
    """Edges of intervals alone may be below 0: some tools take them from a normal law."""
    if isinstance(part, dict | list):
        for key, value in part.items() if isinstance(part, dict) else ((name, value) for value in part):
            _check_signs(value, key)
    elif isinstance(part, int | float) and part < 0 and name != "low":
        raise ValueError(f"{name} of {part:g}, below 0")


def _in_words(error: Exception) -> str:
    """msgspec's and our own messages are words; those of Python's containers and numbers are not."""
    if isinstance(error, KeyError):
        return f"it lacks '{error.args[0]}'"
    if isinstance(error, ValueError):  # msgspec.ValidationError too
        return str(error).rstrip(".")
    return "a part of it is of another kind than expected"


def _objects(path: Path, text: str) -> list[Any]:
    """One JSON document, or one a line (vllm bench serve --append-result)."""
    if not text.strip():
        raise ConfigurationError(f"{path} is empty.")
    try:
        return [_load(text)]
    except (ValueError, RecursionError) as error:
        problem = error
    if isinstance(problem, json.JSONDecodeError) and problem.msg == "Extra data":  # another document behind the first
        try:
            return [_load(line) for _, line in numbered_lines(text)]
        except (ValueError, RecursionError) as error:
            problem = error
    raise ConfigurationError(f"{path} is not JSON: {problem}.")


def _load(text: str) -> Any:
    """NaN and infinity are no JSON, and no figure."""
    return json.loads(text, parse_constant=_finite, parse_float=_finite)


def _finite(word: str) -> float:
    value = float(word)
    if not isfinite(value):
        raise ValueError(f"it holds {word}, which is no finite number")
    return value
