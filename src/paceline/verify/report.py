"""What `paceline verify` found, as values: what the terminal, the JSON and the page show."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

from paceline.verify.statistics import Fit

Verdict = Literal["pass", "fail"]


@dataclass(frozen=True, slots=True)
class Cell:
    """A token (or all the others, token None) in the group that fits worst."""

    token: int | None
    text: str | None
    expected: float
    observed: int


@dataclass(frozen=True, slots=True)
class LawTest:
    """One place of one mode and setting.

    place: 0 is the first token, which is not drafted; 1 .. K are drafted; K + 1 holds the bonus tokens.
    coverage: the share of the answers reaching this place that stood behind a prefix frequent enough to test.
    detectable: TV that would have been found with probability POWER; None: nothing could have been.
    confirmation: the fit of fresh samples, where the first p-value asked for them.
    """

    mode: str
    setting: str
    place: int
    last_place: bool
    fit: Fit
    coverage: float
    detectable: float | None
    verdict: Verdict
    confirmation: Fit | None = None
    worst_prefix: list[int] = field(default_factory=list)
    worst: list[Cell] = field(default_factory=list)
    impossible: list[Cell] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ModeSummary:
    """What speculation did while the law was sampled; each kind of token must have come for the test to mean much."""

    mode: str
    num_answers: int
    num_drafts: int
    num_draft_tokens: int
    num_accepted: int
    num_bonus: int  # steps that kept all of their K drafts
    acceptance_rate: float

    @property
    def missing_kinds(self) -> list[str]:
        kinds = {
            "accepted": self.num_accepted,
            "recovered": self.num_draft_tokens - self.num_accepted,  # a draft that was not kept
            "bonus": self.num_bonus,
        }
        return [kind for kind, count in kinds.items() if count == 0]


@dataclass(frozen=True, slots=True)
class Difference:
    """Greedy texts that part: the first place where they do, and the two processed logits there."""

    mode: str
    setting: str
    prompt: str
    place: int
    plain_token: int
    speculative_token: int
    plain_text: str | None
    speculative_text: str | None
    plain_logit: float | None
    speculative_logit: float | None
    tolerance: float
    kind: Literal["near-tie", "fault"]


@dataclass(frozen=True, slots=True)
class ParityTest:
    mode: str
    setting: str
    num_texts: int
    num_tokens: int
    num_identical: int
    differences: list[Difference]

    @property
    def verdict(self) -> Verdict:
        return "fail" if any(difference.kind == "fault" for difference in self.differences) else "pass"


@dataclass(frozen=True, slots=True)
class DeterminismTest:
    """The same requests with the same seeds, in another company. `changed`: numbers of requests that differ."""

    mode: str
    company: str
    num_requests: int
    num_tokens: int
    changed: list[int]
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Report:
    about: dict[str, str]  # what ran: target, draft, versions, dtype, seed
    level: dict[str, float]  # alpha, screening level, power
    modes: list[ModeSummary]
    law: list[LawTest]
    parity: list[ParityTest]
    determinism: list[DeterminismTest]
    findings: list[str]  # what failed and where to look, in words
    not_tested: list[str]

    @property
    def but_only(self) -> str:
        """What to say behind the verdict where a part of three was not tested: ' (parity only)'; else nothing."""
        parts = {"law": self.law, "parity": self.parity, "seeds": self.determinism}
        tested = [name for name, found in parts.items() if found]
        return "" if len(tested) == len(parts) else f" ({' and '.join(tested)} only)"

    @property
    def summary(self) -> list[str]:
        """What was tested and with what power, in a few plain lines."""
        return [line for line in (self._law_line(), self._parity_line(), self._determinism_line()) if line]

    def _law_line(self) -> str:
        if not self.law:
            return ""
        failed = sum(test.verdict == "fail" for test in self.law)
        found = [test.detectable for test in self.law if test.detectable is not None]
        power = (
            f" An error of TV {median(found):.2f} at one of them (the median; the best {min(found):.2f}, the "
            f"worst {max(found):.2f}) would have been found with probability {self.level['power']:.0%} or more."
            if found
            else ""
        )
        answers = sum(mode.num_answers for mode in self.modes)
        return (
            f"Law: {failed or 'none'} of the {len(found)} places that could be tested (of {len(self.law)}) differ from "
            f"the target's law, in {answers} answers."
            f"{power} A lossless engine would fail this with a probability of at most {self.level['alpha']:g}."
        )

    def _parity_line(self) -> str:
        if not self.parity:
            return ""
        texts = sum(test.num_texts for test in self.parity)
        differences = [difference for test in self.parity for difference in test.differences]
        faults = sum(difference.kind == "fault" for difference in differences)
        return (
            f"Greedy parity: {texts - len(differences)} of {texts} texts are identical with and without speculation; "
            f"{len(differences) - faults} differ by a near-tie, {faults} by a fault."
        )

    def _determinism_line(self) -> str:
        if not self.determinism:
            return ""
        failed = sum(test.verdict == "fail" for test in self.determinism)
        return f"Determinism by seed: {len(self.determinism) - failed} of {len(self.determinism)} comparisons hold."

    @property
    def passed(self) -> bool:
        tests: list[LawTest | ParityTest | DeterminismTest] = [*self.law, *self.parity, *self.determinism]
        return all(test.verdict == "pass" for test in tests)

    def to_json(self) -> str:
        data: dict[str, Any] = {"format": 1, "passed": self.passed, "summary": self.summary, **dataclasses.asdict(self)}
        for test, plain in zip(self.parity, data["parity"], strict=True):
            plain["verdict"] = test.verdict
        return json.dumps(data, indent=1, ensure_ascii=False)
