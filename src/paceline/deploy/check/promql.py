"""PromQL in alert rules and in what scales: a query that cannot be read never fires and never scales, without a word.

Prometheus' own promtool reads them where it is installed; else brackets, quotes and ends are looked at.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from paceline.deploy.check.findings import Finding, Json, error

Query = tuple[str, str]  # path, PromQL
Ask = Callable[[Sequence[str]], "list[str | None] | None"]

_DURATION = re.compile(r"0|(\d+y)?(\d+w)?(\d+d)?(\d+h)?(\d+m)?(\d+s)?(\d+ms)?")
_CLOSING = {")": "(", "]": "[", "}": "{"}
_DANGLING = re.compile(r"(?:[-+*/%^<>=,]|\b(?:and|or|unless|by|without|on|ignoring|offset))\s*$", re.IGNORECASE)
_STRING = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|`[^`]*`')


def promql_findings(content: Json, ask: Ask | None = None) -> Iterator[Finding]:
    """`ask` is promtool, given queries: what is wrong with each, or None where it cannot be asked."""
    yield from _trigger_settings(content)
    queries = list(queries_of(content))
    if not queries:
        return
    told = (ask or promtool)([text for _, text in queries])
    problems = [wrong_query(text) for _, text in queries] if told is None else told
    for (path, _), problem in zip(queries, problems, strict=True):
        if problem is not None:
            yield error(path, f"is no PromQL: {problem}.")
    for path, value in _durations(content):
        if not isinstance(value, str) or not value or not _DURATION.fullmatch(value):
            yield error(path, f"{value!r} is no duration of Prometheus: give such as 30s, 5m or 1h30m.")


def queries_of(content: Json) -> Iterator[Query]:
    kind, spec = content.get("kind"), content.get("spec") or {}
    if kind == "PrometheusRule":
        for at, group in enumerate(spec.get("groups") or []):
            for index, rule in enumerate(group.get("rules") or []):
                yield f"$.spec.groups[{at}].rules[{index}].expr", str(rule.get("expr", ""))
    if kind == "ScaledObject":
        yield from _triggers("$.spec.triggers", spec.get("triggers"))
    if kind == "LLMInferenceService":
        keda = (spec.get("scaling") or {}).get("keda") or {}
        yield from _triggers("$.spec.scaling.keda.triggers", keda.get("triggers"))
    if kind == "InferenceService":
        metrics = ((spec.get("predictor") or {}).get("autoScaling") or {}).get("metrics") or []
        for index, entry in enumerate(metrics):
            metric = (entry.get("external") or {}).get("metric") or {}
            if metric.get("backend") == "prometheus":
                where = f"$.spec.predictor.autoScaling.metrics[{index}].external.metric.query"
                yield where, str(metric.get("query", ""))


def _triggers(path: str, triggers: Any) -> Iterator[Query]:
    for index, trigger in enumerate(triggers or []):
        if trigger.get("type") == "prometheus":
            yield f"{path}[{index}].metadata.query", str((trigger.get("metadata") or {}).get("query", ""))


def _trigger_settings(content: Json) -> Iterator[Finding]:
    """KEDA reads them as texts of its own, which no schema knows."""
    spec = content.get("spec") or {}
    parts = {
        "ScaledObject": ("$.spec.triggers", spec.get("triggers")),
        "LLMInferenceService": (
            "$.spec.scaling.keda.triggers", ((spec.get("scaling") or {}).get("keda") or {}).get("triggers")
        ),
    }  # fmt: skip
    path, triggers = parts.get(str(content.get("kind")), ("", None))
    for index, trigger in enumerate(triggers or []):
        settings = trigger.get("metadata") or {}
        if trigger.get("type") != "prometheus":
            continue
        for name in ("serverAddress", "query", "threshold"):
            if not settings.get(name):
                yield error(f"{path}[{index}].metadata.{name}", "is missing.")
        if settings.get("threshold") and not re.fullmatch(r"-?\d+(\.\d+)?", str(settings["threshold"])):
            yield error(f"{path}[{index}].metadata.threshold", f"{settings['threshold']!r} is no number.")


def _durations(content: Json) -> Iterator[tuple[str, Any]]:
    if content.get("kind") != "PrometheusRule":
        return
    for at, group in enumerate((content.get("spec") or {}).get("groups") or []):
        for index, rule in enumerate(group.get("rules") or []):
            for name in ("for", "keep_firing_for"):
                if name in rule:
                    yield f"$.spec.groups[{at}].rules[{index}].{name}", rule[name]


def has_promtool() -> bool:
    return shutil.which("promtool") is not None


def promtool(queries: Sequence[str]) -> list[str | None] | None:
    """What promtool says against each query, None where nothing; None alone where it is not there or says nothing."""
    if not has_promtool():
        return None
    rules = [{"record": f"q:{number}", "expr": text} for number, text in enumerate(queries)]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "rules.yaml")
        file.write_text(json.dumps({"groups": [{"name": "q", "rules": rules}]}))
        try:
            done = subprocess.run(["promtool", "check", "rules", str(file)], capture_output=True, text=True, timeout=60)
        except (OSError, subprocess.TimeoutExpired):
            return None
    if done.returncode == 0:
        return [None] * len(queries)
    found = dict(re.findall(r'"q:(\d+)": (.*)', done.stdout + done.stderr))
    if not found:
        return None
    return [_shortened(found.get(str(number))) for number in range(len(queries))]


def _shortened(message: str | None) -> str | None:
    if message is None:
        return None
    return message.removeprefix("could not parse expression: ").strip().rstrip(".")[:200]


def wrong_query(text: str) -> str | None:
    """A light look, without a parser: what no PromQL has."""
    bare = re.sub(r"#.*", "", _STRING.sub('""', text))
    if not bare.strip():
        return "it is empty"
    if bare.count("'") or bare.count("`") or bare.replace('""', "").count('"'):
        return "a quote is not closed"
    open_ones: list[str] = []
    for letter in bare:
        if letter in _CLOSING.values():
            open_ones.append(letter)
        elif letter in _CLOSING and (not open_ones or open_ones.pop() != _CLOSING[letter]):
            return f"'{letter}' closes nothing"
    if open_ones:
        return f"'{open_ones[-1]}' is not closed"
    return "it ends in an operator" if _DANGLING.search(bare) else None
