"""Part (a): the law of what was sampled, place by place, in two stages.

Stage one looks at every place of every case at SCREENING. What looks odd there is sampled anew, CONFIRMATION_FACTOR
times as often, and fails only if the fresh samples alone say so, at ALPHA for the whole run (Holm). So a lossless
engine fails with a probability of at most ALPHA however many tests there are, and an error needs to pass only the
screening, which is lenient, to be found. A token of probability 0, or a p-value below OVERWHELMING, fails at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from paceline.verify.cases import Mode, Prompt, Setting
from paceline.verify.law import laws, processed_logits
from paceline.verify.oracle import Oracle
from paceline.verify.precision import Precision
from paceline.verify.report import Cell, LawTest
from paceline.verify.statistics import Fit, GroupFit, by_prefix, combine, detectable_variation, fit_group, holm

ALPHA = 0.001
SCREENING = 0.005
OVERWHELMING = 1e-10
POWER = 0.9
CONFIRMATION_FACTOR = 3
MIN_GROUP = 12  # answers behind one prefix, below which it is not worth a pass of the oracle
MAX_GROUPS = 24  # prefixes of one place, most frequent first

Text = Callable[[int], str | None]


@dataclass(frozen=True, slots=True)
class Case:
    mode: Mode
    setting: Setting


@dataclass(frozen=True, slots=True)
class Group:
    """The answers that begin with `prefix`: what came next, and how it fits."""

    prefix: tuple[int, ...]
    counts: Counter[int]
    fit: GroupFit


@dataclass(frozen=True, slots=True)
class Place:
    """A place of a case, measured."""

    case: Case
    place: int
    fit: Fit
    coverage: float
    groups: tuple[Group, ...]

    @property
    def is_overwhelming(self) -> bool:
        return self.fit.p_value < OVERWHELMING

    @property
    def suspicious(self) -> bool:
        return OVERWHELMING <= self.fit.p_value < SCREENING


class LawCheck:
    def __init__(self, oracle: Oracle, prompts: Sequence[Prompt], ends: Sequence[int], precision: Precision) -> None:
        self._oracle = oracle
        self._prompts = prompts
        self._ends = ends
        self._precision = precision

    def measure(self, case: Case, samples: Sequence[Sequence[int]]) -> list[Place]:
        """Every place of the samples of a case."""
        prompt = self._prompts[case.setting.prompt].token_ids
        by_place = [by_prefix(samples, place) for place in range(case.mode.num_places)]
        chosen = [_frequent({prefix: sum(c.values()) for prefix, c in groups.items()}) for groups in by_place]
        wanted = [(*prompt, *prefix) for prefixes in chosen for prefix in prefixes]
        raw = dict(zip(wanted, self._oracle.logits(wanted), strict=True))
        places = []
        for place, (groups, prefixes) in enumerate(zip(by_place, chosen, strict=True)):
            fits = []
            for prefix in prefixes:
                params = case.setting.params
                logits = processed_logits(raw[*prompt, *prefix], params, prompt, prefix, self._ends)
                fit = fit_group(groups[prefix], laws(logits, params, self._precision.probability))
                fits.append(Group(prefix, groups[prefix], fit))
            together = combine([group.fit for group in fits])
            reached = sum(sum(counts.values()) for counts in groups.values())
            coverage = together.num_samples / reached if reached else 0.0
            places.append(Place(case, place, together, coverage, tuple(fits)))
        return places

    def judge(self, first: Sequence[Place], fresh: Sequence[Place], text: Text) -> list[LawTest]:
        """Verdicts on all places of stage one; `fresh` has the confirmations of the suspicious ones."""
        confirmations = {(place.case, place.place): place for place in fresh}
        asked = [place for place in first if place.suspicious]
        again = [confirmations[place.case, place.place].fit for place in asked]
        fallen = holm([fit.p_value for fit in again], ALPHA)
        fails = {
            (place.case, place.place)
            for place, fit, falls in zip(asked, again, fallen, strict=True)
            if falls and self._beyond_rounding(fit)
        }
        fails |= {
            (place.case, place.place) for place in first if place.is_overwhelming and self._beyond_rounding(place.fit)
        }
        return [
            _law_test(
                place,
                confirmations.get((place.case, place.place)) if place.suspicious else None,
                (place.case, place.place) in fails,
                text,
            )
            for place in first
        ]

    def _beyond_rounding(self, fit: Fit) -> bool:
        """Is the deviation more than the dtype explains? float32 explains none."""
        allowed = self._precision.variation
        return allowed == 0.0 or fit.variation_low > allowed or fit.num_impossible > allowed * fit.num_samples


def _frequent(sizes: dict[tuple[int, ...], int]) -> list[tuple[int, ...]]:
    ordered = sorted(sizes, key=lambda prefix: (-sizes[prefix], prefix))
    return [prefix for prefix in ordered[:MAX_GROUPS] if sizes[prefix] >= MIN_GROUP]


def _law_test(place: Place, fresh: Place | None, fails: bool, text: Text) -> LawTest:
    shown = fresh if fresh is not None and fresh.groups else place
    worst = max(shown.groups, key=_oddness, default=None)
    last = place.case.mode.num_places - 1
    test = LawTest(
        mode=place.case.mode.name,
        setting=place.case.setting.name,
        place=place.place,
        last_place=place.place == last,
        fit=place.fit,
        coverage=place.coverage,
        detectable=detectable_variation(place.fit.num_samples, place.fit.degrees, SCREENING, POWER),
        verdict="fail" if fails else "pass",
        confirmation=fresh.fit if fresh is not None else None,
    )
    if worst is None:
        return test
    cells = [Cell(token, _shown(token, text), wanted, seen) for token, wanted, seen in worst.fit.cells]
    impossible = [Cell(token, _shown(token, text), 0.0, seen) for token, seen in worst.fit.impossible]
    return replace(test, worst_prefix=list(worst.prefix), worst=cells, impossible=impossible)


def _oddness(group: Group) -> tuple[int, float]:
    return sum(seen for _, seen in group.fit.impossible), group.fit.statistic - group.fit.degrees


def _shown(token: int | None, text: Text) -> str | None:
    return None if token is None else text(token)
