"""Calibration: how long steps take here, measured on the executor that will run them, before the first request.

The plans are ordinary ones; what they write lies in blocks that nobody owns yet. Timings are those of the results: a
GPU stamps its captured steps itself, a CPU's parts are timed by the worker.

captured steps   every form, the median of a few runs, again where two contradict each other; the price of a longer
                 context from two contexts
eager steps      a thin grid of rows and K, in rounds for SECONDS, the least of each; what lies between and beyond is
                 interpolated; once for rows that take the likeliest token, and once with rows that draw
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from statistics import median_low

from paceline.config import EngineConfig
from paceline.engine.cost_fit import departures, split_by_rows
from paceline.engine.curves import Curve
from paceline.engine.interfaces import Executor
from paceline.engine.step_costs import PaddedCosts, RaggedCosts, StepCosts, padding
from paceline.plan import RowPlan, SamplingPlan, StepPlan, StepResult, StepTimings
from paceline.step_forms import Form, StepForms

SECONDS = 4.0  # for eager steps whose rows take the likeliest token, and as many for those in which some draw
_RUNS = 3
MORE_SECONDS = 8.0  # ... and at most so many on a machine that others disturb
_ENOUGH_ROUNDS, _MOST_ROUNDS = 6, 40  # over the eager grid: of all cells, and of those that were disturbed
_REFERENCE_ROWS = 8  # of the step by which it is told whether the machine is disturbed
_DISTURBED = 1.3  # times what that step can take
_SOUND = 2  # undisturbed measurements of a cell that are wanted
_CONTEXT = 128  # positions of a row
_MORE_CONTEXT = 1024
_EAGER_ROWS = (1, 8, 32, 4, 2, 16, 64, 128)  # the range first, should time be short
_MOST_TOKENS = 64  # of a step with more than one draft a row: longer ones take the time of many, and never pay
_PADDED_ROWS = 8
_FALLS = 1.01  # times what more rows or drafts take: noise says as much of two captured steps
_CORRECTIONS = 4  # rounds over captured steps that contradict each other
_FIRST_ID = 1 << 48  # of sequences that do not exist
_LAG, _MORE_LAG = 8, 256
_MOST_LAGGING = 8192
_CHECKS = 4  # runs of a step by which a table from the disk is checked
_TOO_SLOW = 1.25  # times what a step takes now: more than two quiet measurements differ
_SHORT = 2e-4  # seconds of a part that decides nothing
_NEVER = 1e3  # seconds of a step that is over the budget of tokens: it is never planned


def measure_costs(
    config: EngineConfig, executor: Executor, *, clock: Callable[[], float] = time.perf_counter
) -> StepCosts:
    """Seconds by rows and K. The executor must be idle, its cache unused."""
    shapes = executor.shapes()
    bench = _Bench(config, executor, clock)
    return _padded(bench, shapes.forms) if shapes.forms.sizes else _ragged(bench)


def still_fits(
    costs: StepCosts, config: EngineConfig, executor: Executor, *, clock: Callable[[], float] = time.perf_counter
) -> bool:
    """Was a table of eager steps, measured before, measured as well as a few steps can be now? What else ran on the
    machine meanwhile would be in it for good. Steps that are slower now say nothing: the machine may be busy."""
    if not isinstance(costs, RaggedCosts):
        return True
    bench = _Bench(config, executor, clock)
    context = bench.context(_CONTEXT)
    few, many = min(2, bench.max_rows), min(8, bench.max_rows)
    for rows, k in dict.fromkeys([(1, 0), (1, bench.most), (few, min(1, bench.most)), (many, 0)]):
        if not bench.fits(rows, k):
            continue
        now = bench.least_of(rows, k, context, runs=_CHECKS)
        parts = (
            (costs.verifying(rows, rows * k, rows * context), now.verify + now.accept),
            (costs.drafting([rows] * k), now.draft),
        )
        if any(was > _TOO_SLOW * max(part, _SHORT) for was, part in parts):
            return False
    return True


class _Bench:
    """Makes plans and runs them."""

    def __init__(self, config: EngineConfig, executor: Executor, clock: Callable[[], float]) -> None:
        self.most = config.num_speculative_tokens
        self.max_rows = config.scheduler.max_num_seqs
        self.clock = clock
        self._budget = config.scheduler.max_num_batched_tokens
        draft = config.draft
        self._longest = min(config.model.max_model_len, draft.max_model_len if draft else config.model.max_model_len)
        self._has_draft = draft is not None
        self._executor = executor
        self.draws = False  # every other row samples
        self._steps = count(-1, -1)  # ids that no step of a scheduler has

    def context(self, wanted: int) -> int:
        """As far as the models' lengths and the cache go."""
        room = (self._executor.num_blocks - 1) * self._executor.block_size
        return max(2, min(wanted, self._longest - self.most - 1, room - self.most))

    def fits(self, num_rows: int, k: int) -> bool:
        return num_rows * (k + 1) <= self._budget

    def form_seconds(self, form: Form, context: int) -> float:
        if form.num_tokens > self._budget:
            return _NEVER
        return total(self._medians(self._ragged_plan(form.counts(), context), _RUNS))

    def time(self, num_rows: int, k: int, context: int, runs: int = _RUNS) -> StepTimings:
        """Medians of the parts; one run more comes first and is not counted."""
        return self._medians(self._plan(num_rows, k, context), runs)

    def _medians(self, plan: StepPlan, runs: int) -> StepTimings:
        timings = [self._run(plan).timings for _ in range(runs + 1)][1:]
        return StepTimings(*(median_low(part) for part in zip(*map(_parts, timings), strict=True)))

    def least_of(self, num_rows: int, k: int, context: int, runs: int = 2) -> StepTimings:
        """The least of each part. A first run of a shape compiles kernels, and is never the least of two."""
        return self._least([k] * num_rows, context, runs)

    def least_of_one_drafting(self, num_rows: int, k: int, context: int, runs: int = 4) -> StepTimings:
        """The same where one row alone has drafts."""
        return self._least([k] + [0] * (num_rows - 1), context, runs)

    def _least(self, counts: list[int], context: int, runs: int) -> StepTimings:
        plan = self._ragged_plan(counts, context)
        parts = [_parts(self._run(plan).timings) for _ in range(runs)]
        return StepTimings(*map(min, zip(*parts, strict=True)))

    def seconds(self, num_rows: int, k: int, context: int, runs: int = _RUNS, *, lag: int = 0) -> float:
        """Of a whole step; with a lag, whose step is eager, on the host's clock."""
        if not lag:
            return total(self.time(num_rows, k, context, runs))
        plan = self._plan(num_rows, k, context, lag)
        self._run(plan)
        return min(self._seconds_of(plan) for _ in range(runs))

    def _seconds_of(self, plan: StepPlan) -> float:
        started = self.clock()
        self._run(plan)
        return self.clock() - started

    def rows_that_may_lag(self, lag: int, most: int) -> int:
        """Rows whose drafts together may read so many tokens each, `_MOST_LAGGING` in all: a pass over few tokens takes
        the time of its launches, whatever their number."""
        return min(most, min(self._budget, _MOST_LAGGING) // max(1, lag))

    def _run(self, plan: StepPlan) -> StepResult:
        self._executor.submit(plan)
        return self._executor.collect()

    def _plan(self, num_rows: int, k: int, context: int, lag: int = 0) -> StepPlan:
        return self._ragged_plan([k] * num_rows, context, lag)

    def _ragged_plan(self, counts: list[int], context: int, lag: int = 0) -> StepPlan:
        rows = [self._row(index, k, context, lag) for index, k in enumerate(counts)]
        return StepPlan(step_id=next(self._steps), rows=rows)

    def _row(self, index: int, k: int, context: int, lag: int) -> RowPlan:
        """A row that decodes; equal tokens, so that an n-gram is found."""
        size, blocks = self._executor.block_size, self._executor.num_blocks - 1
        width = -(-(context + k) // size)
        drafting = k > 0 and self._has_draft
        mark = max(0, context - 2 - lag)
        return RowPlan(
            seq_id=_FIRST_ID + index,
            block_table=[1 + (index * width + place) % blocks for place in range(width)],
            start=context - 1,
            token_ids=[1],
            draft_start=mark if drafting else 0,
            draft_chunk=[1] * (context - mark) if drafting else [],
            num_draft_computed_tokens=mark,
            num_draft_tokens=k,
            num_output_tokens=1,
            history=None if self._has_draft else [1] * context,
            draft_limit=context + k,
            sampling=SamplingPlan(temperature=float(self.draws and index % 2 == 0), seed=index),
        )


def _parts(timings: StepTimings) -> tuple[float, float, float]:
    return timings.draft, timings.verify, timings.accept


def total(timings: StepTimings) -> float:
    return timings.draft + timings.verify + timings.accept


def _padded(bench: _Bench, forms: StepForms) -> PaddedCosts:
    bench.draws = True
    context, more = bench.context(_CONTEXT), bench.context(_MORE_CONTEXT)
    seconds = _forms_seconds(bench, forms, context)
    costs = PaddedCosts.measured(forms, seconds.__getitem__, float(context))
    sizes, draft_counts = forms.sizes, forms.draft_counts
    rows, k = min(sizes[-1], 32), next((k for k in draft_counts if k), 0)
    if more > 2 * context:
        plain = bench.seconds(rows, 0, more) - bench.seconds(rows, 0, context)
        costs.target_position = max(0.0, plain / (rows * (more - context)))
        if k:
            drafting = bench.time(rows, k, more).draft - bench.time(rows, k, context).draft
            costs.draft_position = max(0.0, drafting / (rows * k * (more - context)))
    if k:
        few, short, long = min(sizes[-1], 4), min(_LAG, context - 2), min(_MORE_LAG, more - 2)
        costs.resume_seconds = max(0.0, bench.seconds(few, k, more, lag=short) - bench.seconds(few, k, more))
        many = bench.rows_that_may_lag(long, sizes[-1])
        if long > short > 0 and many:
            beyond = bench.seconds(many, k, more, lag=long) - bench.seconds(many, k, more, lag=short)
            costs.resume_token = max(0.0, beyond / (many * (long - short)))
    return costs


def _forms_seconds(bench: _Bench, forms: StepForms, context: int) -> dict[Form, float]:
    """More rows or more drafts never take less time. Where two measurements say so by more than noise, one of them was
    disturbed: both are made again, later, and the least counts. (Levelling them out instead spread one bad cell over
    its neighbours: on an H200 K = 7 of eight rows must have stood 8 per cent too high or more: it was never tried.)"""
    in_turn = sorted(forms.all(), key=lambda form: (form.is_split, form.size, form.k))
    seconds = {form: bench.form_seconds(form, context) for form in in_turn}
    for _ in range(_CORRECTIONS):
        disturbed = [
            form for pair in forms.neighbours() if seconds[pair[0]] > _FALLS * seconds[pair[1]] for form in pair
        ]
        if not disturbed:
            break
        for form in dict.fromkeys(disturbed):
            seconds[form] = min(seconds[form], bench.form_seconds(form, context))
    return seconds


def _ragged(bench: _Bench) -> RaggedCosts:
    costs = _ragged_of(bench)
    bench.draws = True
    costs.drawn = _ragged_of(bench)
    return costs


def _ragged_of(bench: _Bench) -> RaggedCosts:
    context = bench.context(_CONTEXT)
    sizes = dict.fromkeys(min(rows, bench.max_rows) for rows in _EAGER_ROWS)
    cells = [(rows, k) for rows in sizes for k in _draft_counts(bench, rows)]
    best = _least(bench, cells, context)
    verify = {cell: timings.verify + timings.accept for cell, timings in best.items()}  # rows, K -> seconds
    draft = [(2.0 * rows, timings.draft) for (rows, k), timings in best.items() if k == 1]  # tokens of a pass, seconds
    draft += [
        (float(rows), max(0.0, timings.draft - best[rows, 1].draft) / (k - 1))
        for (rows, k), timings in best.items()
        if k > 1
    ]
    row_seconds, curve = split_by_rows(verify)
    costs = RaggedCosts(curve, Curve.through(draft or [(1.0, 0.0)]), row_seconds, float(context))
    costs.departures = departures(verify, row_seconds, curve)
    costs.padding_seconds = _padding_seconds(bench, costs, context)
    more, rows = bench.context(_MORE_CONTEXT // 2), min(2, bench.max_rows)
    if more > 2 * context and bench.fits(rows, 1):
        near, far = bench.least_of(rows, 1, context), bench.least_of(rows, 1, more)
        costs.target_position = max(0.0, (far.verify - near.verify) / (rows * (more - context)))
        costs.draft_position = max(0.0, (far.draft - near.draft) / (rows * (more - context)))
    return costs


def _draft_counts(bench: _Bench, rows: int) -> list[int]:
    """None, one, and as many as are worth measuring with so many rows."""
    most = min(bench.most, max(1, _MOST_TOKENS // rows - 1))
    return [k for k in sorted({0, min(1, bench.most), most}) if bench.fits(rows, k)]


def _least(bench: _Bench, cells: list[tuple[int, int]], context: int) -> dict[tuple[int, int], StepTimings]:
    """The least time of each part, in rounds over all cells, SECONDS long. What others do on the machine only ever
    makes a step longer; but where it does so for seconds (a virtual machine whose processors share one for a while
    takes twice as long), a table would hold cells of both times. So one and the same step is timed before each cell,
    and what was measured while that took longer than it can is only believed of a cell that nothing else is known of.
    Such cells are tried again, for at most MORE_SECONDS."""
    reference = (min(_REFERENCE_ROWS, bench.max_rows), 0)
    found: dict[tuple[int, int], list[tuple[float, StepTimings]]] = {cell: [] for cell in cells}
    started, lacking = bench.clock(), cells
    for turn in range(_MOST_ROUNDS):
        for cell in lacking:
            if (
                bench.clock() > started + (SECONDS if turn == 0 else MORE_SECONDS)
                and sum(map(bool, found.values())) > 1
            ):
                return _undisturbed(found)
            pace = total(bench.least_of(*reference, context, runs=1))
            found[cell].append((pace, bench.least_of(*cell, context, runs=2 if turn == 0 else 1)))
        quickest = min(pace for times in found.values() for pace, _ in times)
        is_over = turn + 1 >= _ENOUGH_ROUNDS or bench.clock() > started + SECONDS
        lacking = [
            cell
            for cell in cells
            if not is_over or sum(pace <= _DISTURBED * quickest for pace, _ in found[cell]) < _SOUND
        ]
    return _undisturbed(found)


def _undisturbed(found: dict[tuple[int, int], list[tuple[float, StepTimings]]]) -> dict[tuple[int, int], StepTimings]:
    quickest = min(pace for times in found.values() for pace, _ in times)
    best: dict[tuple[int, int], StepTimings] = {}
    for cell, times in found.items():
        sound = [timings for pace, timings in times if pace <= _DISTURBED * quickest] or [one for _, one in times]
        if sound:
            best[cell] = StepTimings(*map(min, zip(*map(_parts, sound), strict=True)))
    known = {cell: timings for cell, timings in best.items() if cell[1] < 2 or (cell[0], 1) in best}
    return {cell: _possible(cell, known) for cell in known}


def _possible(cell: tuple[int, int], known: dict[tuple[int, int], StepTimings]) -> StepTimings:
    """No pass takes longer than several that do the same: one of all rows for each place, or one for some rows each."""
    (rows, k), timings = cell, known[cell]
    passes = [
        (k + 1) * -(-rows // fewer) * other.verify for (fewer, drafts), other in known.items() if not drafts
        if fewer <= rows
    ]  # fmt: skip
    return StepTimings(timings.draft, min([timings.verify, *passes]), timings.accept)


def _padding_seconds(bench: _Bench, costs: RaggedCosts, context: int) -> float:
    """What a step with one drafting row takes beyond its tokens, for each query that only fills up. Never more than
    a token's own share: the rest was noise."""
    rows, k = min(_PADDED_ROWS, bench.max_rows), bench.most
    if rows < 2 or k < 1 or not bench.fits(rows, k):
        return 0.0
    timings = bench.least_of_one_drafting(rows, k, context)
    beyond = timings.verify + timings.accept - costs.verifying(rows, k, rows * context)
    token = (costs.verifying(rows, rows * k, rows * context) - costs.verifying(rows, 0, rows * context)) / (rows * k)
    return min(max(0.0, beyond / padding(rows, [1] * k)), max(0.0, token))
