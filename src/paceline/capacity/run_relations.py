"""Do the figures of a document of `paceline bench offline` fit each other? Its rows are derived from its runs, so they
are derived again; counts and seconds of a run that cannot be are named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isclose
from typing import Any

from paceline.bench.bounds import Bounds
from paceline.errors import ConfigurationError

_ROUNDING = 1e-6
_SECONDS, _COUNT = Bounds(1e-9, 1e9, or_zero=True), Bounds(0, 1e15)
_PARTS = ("draft", "verify", "accept")
_CASE = ("batch", "k", "draft_loaded")
Row = Mapping[str, Any]


def number(row: Row, name: str, bounds: Bounds, where: str) -> float:
    """Raises ConfigurationError where it is none, or one that nothing measures (NaN, infinite, 0 seconds)."""
    value = row[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigurationError(f"{where}: {name} must be a number, not {str(value)[:40]!r}.")
    if problem := bounds.problem(f"{where}: {name}", value):
        raise ConfigurationError(problem)
    return float(value)


def check_document(rows: Sequence[Row], runs: Sequence[Row], output_len: int, where: str) -> None:
    """Raises ConfigurationError that names the case and both figures."""
    for place, one in enumerate(runs, 1):
        _refuse(_of_run(_Numbers(one, where), output_len), f"{where}, run {place}")
    for row in rows:
        run = median_run(row, runs, where)
        words = f"{where}, batch {row['batch']}, K={'adaptive' if row.get('adaptive') else row['k']}"
        _refuse(_of_row(_Numbers(row, where)), words)
        if run is not None:
            _refuse(_of_median(_Numbers(row, where), _Numbers(run, where)), words)
        elif runs:
            raise ConfigurationError(f"{words}: there is no run of it. The file was edited or cut; run it again.")


def median_run(row: Row, runs: Sequence[Row], where: str) -> Row | None:
    """The run that a row stands for: that of the median decode speed, the slower one of two in the middle."""
    own = sorted((run for run in runs if _case(run) == _case(row)), key=lambda run: _speed(_Numbers(run, where)))
    return own[(len(own) - 1) // 2] if own else None


class _Numbers:
    """A row or a run; what it lacks (earlier versions) is None."""

    def __init__(self, content: Row, where: str) -> None:
        self._content, self._where = content, where

    def __contains__(self, name: str) -> bool:
        return self._content.get(name) is not None

    def __call__(self, name: str, bounds: Bounds = _COUNT) -> float:
        return number(self._content, name, bounds, self._where)


def _case(row: Row) -> tuple[Any, ...]:
    return *(row[name] for name in _CASE), bool(row.get("adaptive"))


def _speed(run: _Numbers) -> float:
    seconds = run("decode_seconds", _SECONDS)
    return run("decode_tokens") / seconds if seconds else 0.0


def _refuse(problems: Iterator[str], where: str) -> None:
    if found := next(problems, ""):
        raise ConfigurationError(f"{where}: {found}. The file was edited or cut; run it again.")


def _of_run(run: _Numbers, output_len: int) -> Iterator[str]:
    batch, k, steps = run("batch"), run("k"), run("decode_steps")
    at_most = [
        ("decode_tokens", batch * (output_len - 1), "a token short of all answers"),
        ("decode_tokens", steps * batch * (k + 1), "what decode_steps can give"),
        ("full_steps", steps, "decode_steps"),
        ("captured_steps", steps, "decode_steps"),
        ("num_drafts", steps * batch, "a draft a step and sequence"),
        ("num_drafts", run("num_draft_tokens"), "num_draft_tokens"),
        ("num_draft_tokens", k * run("num_drafts"), "K of each draft"),
        ("num_accepted_tokens", run("num_draft_tokens"), "num_draft_tokens"),
    ]
    if "num_passes" in run:
        at_most += [
            ("num_drafts", run("num_passes"), "num_passes"),
            ("decode_tokens", run("num_passes") + run("num_accepted_tokens"), "num_passes and num_accepted_tokens"),
        ]
    for name, most, words in at_most:
        if run(name) > most:
            yield f"{name} is {run(name):g}, above {words} ({most:g})"
    for name, whole in (
        ("full_seconds", "decode_seconds"),
        *((f"{part}_seconds", "decode_seconds") for part in _PARTS),
    ):
        if run(name, _SECONDS) > run(whole, _SECONDS) * (1 + _ROUNDING):
            yield f"{name} is {run(name, _SECONDS):g}, above {whole} ({run(whole, _SECONDS):g})"


def _of_row(row: _Numbers) -> Iterator[str]:
    """Within the row, whatever run it is of."""
    speed = row("decode_tokens_per_second")
    if "tokens_per_second_per_user" in row and not _same(row("tokens_per_second_per_user"), speed / row("batch")):
        yield f"tokens_per_second_per_user is {row('tokens_per_second_per_user'):g}, of {speed:g} in all"
    for name in (f"{part}_ms" for part in _PARTS):
        if name in row and "step_ms" in row and row(name, _SECONDS) > row("step_ms", _SECONDS) * (1 + _ROUNDING):
            yield f"{name} is {row(name, _SECONDS):g}, above step_ms ({row('step_ms', _SECONDS):g})"


def _of_median(row: _Numbers, run: _Numbers) -> Iterator[str]:
    derived = _derived(run)
    if "tokens_per_drafted_pass" not in row:  # so earlier versions called it tokens_per_pass
        derived["tokens_per_pass"] = derived.pop("tokens_per_drafted_pass")
    for name, is_so in derived.items():
        if name in row and not _same(said := row(name, _SECONDS), is_so):
            yield f"{name} is {said:.6g}, and its run gives {is_so:.6g}"


def _derived(run: _Numbers) -> dict[str, float]:
    """As bench/report.py derives them."""
    found = {"decode_tokens_per_second": _speed(run)}
    drafts = run("num_drafts")
    found["tokens_per_drafted_pass"] = 1 + run("num_accepted_tokens") / drafts if drafts else 1.0
    if run_passes := run("num_passes") if "num_passes" in run else 0:
        found["tokens_per_pass"] = run("decode_tokens") / run_passes
    if steps := run("full_steps"):
        found["step_ms"] = 1e3 * run("full_seconds", _SECONDS) / steps
        if "full_draft_seconds" in run:
            found |= {f"{part}_ms": 1e3 * run(f"full_{part}_seconds", _SECONDS) / steps for part in _PARTS}
    return found


def _same(said: float, is_so: float) -> bool:
    return isclose(said, is_so, rel_tol=_ROUNDING, abs_tol=1e-12)
