"""Efficiency fitted to a measurement: least squares on a few named coefficients, each with a weak pull to its origin.

    minimise  sum over cases of  (ln predicted/measured tokens a second)²
            + 1/4 · (ln predicted/measured ratio of the draft's part of a step to the target's)²
            + (0.01 · ln coefficient/origin)² for every coefficient

Cases are compared with the numbers of tokens a pass and of steps that they had: acceptance, and how late the last of a
few sequences ends, are luck of the run and not the card's doing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import log

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from paceline.capacity.efficiency import Efficiency
from paceline.capacity.measurement import MeasuredCase, Measurement
from paceline.capacity.offline_run import Steps, law_of_length, run_seconds, steps_of_run
from paceline.capacity.roofline import Setup, step_seconds
from paceline.errors import ConfigurationError
from paceline.runner.cuda_graphs import padded_sizes

FITTED = ("read", "compute", "product_start", "program_bandwidth", "attention", "sampling", "step_gap")
_PART_WEIGHT = 0.5
_PULL = 0.01
_FEWEST_CASES = 3
_BOUNDS = (log(0.2), log(20.0))  # of coefficient over origin


@dataclass(frozen=True, slots=True)
class Prediction:
    case: MeasuredCase
    tokens_per_second: float
    step: float  # seconds, all rows running

    @property
    def error(self) -> float:
        """Relative, of tokens a second; above 0: too optimistic."""
        return self.tokens_per_second / self.case.tokens_per_second - 1

    @property
    def step_error(self) -> float | None:
        return None if self.case.step is None else self.step / self.case.step - 1


@dataclass(frozen=True, slots=True)
class Calibration:
    efficiency: Efficiency
    before: list[Prediction]
    after: list[Prediction]
    source: str

    @property
    def largest_error(self) -> float:
        return max(abs(prediction.error) for prediction in self.after)


def predict(measured: Measurement, efficiency: Efficiency) -> list[Prediction]:
    """Every case as `efficiency` has it."""
    return [_predict(measured, case, steps, efficiency) for case, steps in _with_steps(measured)]


def calibrate(measured: Measurement) -> Calibration:
    """Raises ConfigurationError if there is too little to fit to."""
    origin = Efficiency()
    if len(measured.cases) < _FEWEST_CASES:
        raise ConfigurationError(
            f"--calibration '{measured.source}' has {len(measured.cases)} cases: at least {_FEWEST_CASES} batches or "
            "Ks are needed, better a dozen."
        )
    cases = list(_with_steps(measured))

    def residuals(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        found = _moved(origin, logs)
        values = [value for case, steps in cases for value in _residuals(measured, case, steps, found)]
        return np.array([*values, *(_PULL * logs)])

    fit = least_squares(residuals, np.zeros(len(FITTED)), bounds=_BOUNDS, x_scale=0.1)
    efficiency = _moved(origin, fit.x)
    before, after = predict(measured, origin), predict(measured, efficiency)
    return Calibration(efficiency, before, after, f"{measured.source}, {measured.date[:10]}, {measured.gpu.name}")


def _moved(origin: Efficiency, logs: NDArray[np.float64]) -> Efficiency:
    """Each fitted coefficient times e to its part of `logs`."""
    values = origin.as_dict()
    return replace(origin, **{name: values[name] * float(np.exp(at)) for name, at in zip(FITTED, logs, strict=True)})


def _with_steps(measured: Measurement) -> Iterator[tuple[MeasuredCase, list[Steps]]]:
    sizes = padded_sizes(max(measured.batches))
    for case in measured.cases:
        law = law_of_length(case.tokens_per_pass, case.k)
        steps = steps_of_run(
            law, batch=case.batch, input_len=measured.input_len, output_len=measured.output_len, sizes=sizes
        )
        yield case, steps if case.num_steps is None else _with_tail_of(steps, case.num_steps)


def _with_tail_of(steps: list[Steps], num_steps: int) -> list[Steps]:
    """As many steps as the run had: what it had more or less, it had when most sequences were done."""
    most = max(group.rows for group in steps)
    full = sum(group.count for group in steps if group.rows == most)
    tail = sum(group.count for group in steps) - full
    luck = max(0.0, num_steps - full) / tail if tail else 1.0
    return [group if group.rows == most else replace(group, count=group.count * luck) for group in steps]


def _setup(measured: Measurement, efficiency: Efficiency) -> Setup:
    return Setup(
        gpu=measured.gpu,
        efficiency=efficiency,
        tp=measured.tp,
        draft_tp=measured.draft_tp,
        is_random=measured.is_random,
    )


def _predict(measured: Measurement, case: MeasuredCase, steps: list[Steps], efficiency: Efficiency) -> Prediction:
    setup = _setup(measured, efficiency)

    def seconds_of(rows: int, positions: float) -> float:
        return step_seconds(setup, measured.target, measured.draft, rows=rows, k=case.k, positions=positions).total

    tokens = case.batch * (measured.output_len - 1)
    full = seconds_of(case.batch, measured.input_len + measured.output_len / 2)
    return Prediction(case, tokens / run_seconds(steps, seconds_of), full)


def _residuals(
    measured: Measurement, case: MeasuredCase, steps: list[Steps], efficiency: Efficiency
) -> Iterator[float]:
    yield log(_predict(measured, case, steps, efficiency).tokens_per_second / case.tokens_per_second)
    full = step_seconds(
        _setup(measured, efficiency),
        measured.target,
        measured.draft,
        rows=case.batch,
        k=case.k,
        positions=measured.input_len + measured.output_len / 2,
    )
    # In documents of earlier versions parts are means over all steps, the tail's among them: compared by their shares.
    whole = case.draft + case.verify
    if case.k and whole > 0 and case.draft > 0:
        yield _PART_WEIGHT * log((full.draft / full.verify) / (case.draft / case.verify))
