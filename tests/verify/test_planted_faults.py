"""paceline verify catches the faults that speculative decoders have had, and does not cry wolf (p01, p02, p04, p07,
p08, p27)."""

from __future__ import annotations

import pytest
from verify.faults import FAULTS, Fault, with_fault
from verify.pair import make_verifiable, options

from paceline.verify.cases import METHODS
from paceline.verify.report import LawTest
from paceline.verify.runner import verify

# Where each fault must show at least, and what is said of it. K = 2: place 0 is not drafted, 1 and 2 are, 3 is the
# bonus token's.
EXPECTED: dict[str, tuple[set[int], str]] = {
    "raw q in the ratio": ({2}, "the draft's raw law"),
    "softmax q for an argmax draft": ({1, 2}, "the draft's softmax"),
    "first draft unverified": ({1}, "the draft's law q"),
    "row off by one": ({2}, "off by one"),
    "nucleus not applied to p": ({1}, "without top_p"),
    "penalties without the drafts before": ({2}, "penalties that do not count"),
    "bonus token drawn from q": ({3}, "the draft's law q"),
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return make_verifiable(tmp_path_factory.mktemp("pair"))


@pytest.mark.parametrize("name", list(FAULTS))
def test_each_fault_is_caught_with_both_methods_and_named(pair: tuple[str, str], name: str) -> None:
    samples = 288 if name.startswith("penalties") else 96  # block verification hides most of that one
    report = verify(options(pair, methods=METHODS, samples=samples), make_llm=with_fault(FAULTS[name]))
    assert not report.passed
    failed = [test for test in report.law if test.verdict == "fail"]
    places, words = EXPECTED[name]
    for method in ("rejection", "block"):
        assert places <= {test.place for test in failed if method in test.mode}, method
    assert any(words in finding for finding in report.findings), report.findings
    assert any("Without speculation the first token has the right law" in finding for finding in report.findings)


def test_what_plants_the_faults_plants_nothing_by_itself(pair: tuple[str, str]) -> None:
    report = verify(options(pair, methods=METHODS, samples=64), make_llm=with_fault(Fault))
    assert report.passed, report.findings
    assert _statistics(report.law) == _statistics(verify(options(pair, methods=METHODS, samples=64)).law)


def _statistics(tests: list[LawTest]) -> list[tuple[int, float]]:
    return [(test.fit.num_samples, test.fit.statistic) for test in tests]


@pytest.mark.parametrize("seed", range(20))
def test_a_sound_engine_passes(pair: tuple[str, str], seed: int) -> None:
    """20 runs, both methods in turn."""
    report = verify(options(pair, seed=seed, samples=64, methods=("block",) if seed % 2 else ("rejection",)))
    assert report.passed, report.findings
    assert sum(test.fit.degrees for test in report.law) > 25
    (mode,) = report.modes
    assert not mode.missing_kinds
