"""Parity, seeds, oracles and the report of paceline verify, on a tiny pair and on made-up answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from verify.pair import PROMPTS, make_verifiable, options

from paceline import LLM
from paceline.engine.curves import Curve
from paceline.engine.step_costs import RaggedCosts
from paceline.errors import ConfigurationError, InvalidRequestError, PacelineError
from paceline.verify import determinism, parity, prompts
from paceline.verify.cases import Setting
from paceline.verify.law import Array
from paceline.verify.oracle import EngineOracle, TransformersOracle
from paceline.verify.page import page
from paceline.verify.precision import PRECISIONS
from paceline.verify.runner import verify
from paceline.verify.sampling import Request, answer

GREEDY = Setting("greedy", {"temperature": 0.0})


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return make_verifiable(tmp_path_factory.mktemp("pair"))


class Known:
    """An oracle with one row of logits."""

    name, absolute = "known", True

    def __init__(self, row: Sequence[float]) -> None:
        self.row = np.array(row)

    def logits(self, texts: Sequence[tuple[int, ...]]) -> list[Array]:
        return [self.row for _ in texts]


@pytest.mark.parametrize(
    ("dtype", "second", "kind"),
    [
        ("float32", 1.9995, "near-tie"),
        ("float32", 1.99, "fault"),
        ("bfloat16", 1.8, "near-tie"),
        ("bfloat16", 1.0, "fault"),
    ],
)
def test_p10_a_difference_is_a_near_tie_or_a_fault(dtype: str, second: float, kind: str) -> None:
    test = parity.compare(
        "mode", GREEDY, [[7], [8]], [[1, 0], [1, 1]], [[1, 1], [1, 1]], Known([2.0, second]), (), PRECISIONS[dtype], str
    )
    assert (test.num_identical, test.verdict) == (1, "fail" if kind == "fault" else "pass")
    (difference,) = test.differences
    assert (difference.place, difference.kind) == (1, kind)
    assert (difference.plain_logit, difference.speculative_logit) == (2.0, second)


def test_p10_penalties_count_in_the_margin() -> None:
    """2.0 less a penalty of 1 for a token already there is no near-tie with 2.0."""
    setting = Setting("penalised", {"temperature": 0.0, "presence_penalty": 1.0})
    test = parity.compare("m", setting, [[7]], [[0, 1]], [[0, 0]], Known([2.0, 2.0]), (), PRECISIONS["float32"], str)
    assert test.differences[0].kind == "fault"


def test_a_text_that_ends_early_is_a_fault() -> None:
    test = parity.compare("m", GREEDY, [[7]], [[0, 1]], [[0]], Known([2.0, 2.0]), (), PRECISIONS["float32"], str)
    assert (test.verdict, test.differences[0].speculative_text) == ("fail", "(the text ends)")


def requests(seed: int) -> list[Request]:
    return [Request([number], {}, seed + number, 3) for number in range(3)]


def test_p05_a_seed_that_looks_at_its_company_is_seen() -> None:
    def sound(wanted: Sequence[Request]) -> list[list[int]]:
        return [[request.seed or 0, request.prompt[0]] for request in wanted]

    def batch_dependent(wanted: Sequence[Request]) -> list[list[int]]:
        return [[request.seed or 0, len(wanted)] for request in wanted]

    def deaf(wanted: Sequence[Request]) -> list[list[int]]:
        return [[request.prompt[0]] for request in wanted]

    def failed(engine: Any) -> list[str]:
        tests = determinism.check("mode", requests(10), requests(90), engine, allowed=0.0)
        return [test.company for test in tests if test.verdict == "fail"]

    assert failed(sound) == []
    assert failed(batch_dependent) == ["alone", "in reverse order among other requests"]
    assert failed(deaf) == ["other seeds give other texts"]


def test_both_oracles_agree(pair: tuple[str, str]) -> None:
    """transformers' logits, less their normaliser, are the log-probabilities of the engine without speculation."""
    texts = [tuple(PROMPTS[0][:9]), tuple(PROMPTS[0][:5]), tuple(PROMPTS[1])]
    theirs = TransformersOracle(Path(pair[0]), 101).logits(texts)
    plain = EngineOracle(
        lambda: LLM(pair[0], skip_tokenizer_init=True, dtype="float32", block_size=4, max_logprobs=-1), 101
    )
    for logits, ours in zip(theirs, plain.logits(texts), strict=True):
        assert ours.shape == (101,)
        np.testing.assert_allclose(logits - np.log(np.exp(logits).sum()), ours, atol=1e-4)


def test_a_prompt_is_cut_where_one_token_is_certain_and_the_next_is_not(pair: tuple[str, str]) -> None:
    oracle = TransformersOracle(Path(pair[0]), 101)
    cut = prompts.cut(PROMPTS[1], oracle, block_size=4)
    assert len(cut.token_ids) % 4 == 1
    whole, chosen = (prompts._law(oracle.logits([text])[0]).max() for text in (tuple(PROMPTS[1]), cut.token_ids))
    assert chosen > 0.8
    assert chosen >= whole
    assert prompts.cut([5, 6, 7], oracle, block_size=4).token_ids == (7,)


@pytest.fixture(scope="module")
def whole(pair: tuple[str, str]) -> Any:
    """Every part, both methods, n-gram as well."""
    return verify(
        options(
            pair,
            numbers=(2,),
            methods=("rejection", "block"),
            parts=("law", "parity", "seeds"),
            quick=False,
            samples=32,
        )
    )


def test_a_whole_verification_passes(whole: Any) -> None:
    assert whole.passed, whole.findings
    assert [mode.mode for mode in whole.modes] == [
        "draft, K=2, rejection, batch 64",
        "draft, K=2, block, batch 64",
        "n-gram, K=2, rejection, batch 16",
        "draft or n-gram, K=2, rejection, batch 64",
    ]
    assert {test.setting for test in whole.law} >= {"plain", "temperature, top_p", "repetition_penalty", "all together"}
    assert sum(test.num_texts for test in whole.parity) == 4 * 2 * len(PROMPTS)
    assert len(whole.determinism) == 4 * 4
    assert "would have been found" in whole.summary[0]
    assert any("stop strings" in gap for gap in whole.not_tested)


def test_the_json_has_everything(whole: Any) -> None:
    data = json.loads(whole.to_json())
    assert (data["format"], data["passed"], len(data["law"])) == (1, True, len(whole.law))
    assert data["law"][0]["fit"].keys() >= {"num_samples", "p_value", "variation", "variation_low", "variation_high"}
    assert data["parity"][0]["verdict"] == "pass"


class Balanced(HTMLParser):
    """Every element that is opened is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_is_one_file_that_needs_nothing(whole: Any) -> None:
    html = page(whole)
    parser = Balanced()
    parser.feed(html)
    assert not parser.open
    assert "Passed." in parser.text
    assert "What was not tested" in parser.text
    assert html.count("<svg") == 4 + 1  # a plot for each mode, and the p-values
    assert "http" not in html
    assert "<script" not in html


def test_an_engine_that_fails_a_request_is_no_verdict(pair: tuple[str, str]) -> None:
    with (
        LLM(pair[0], skip_tokenizer_init=True, dtype="float32", block_size=4) as llm,
        pytest.raises(InvalidRequestError, match="outside the vocabulary"),
    ):
        answer(llm, [Request([5000], {}, 1, 2)])


def test_the_law_with_k_that_follows_load_and_acceptance(
    pair: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine where no draft pays: K moves all the same."""
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    dear = RaggedCosts(Curve([1, 64], [1.0, 64.0]), Curve([1, 64], [1.0, 1.0]))
    monkeypatch.setattr("paceline.engine.cost_cache.measure_costs", lambda config, executor: dear)
    report = verify(options(pair, adaptive=True, numbers=(3,), samples=80))
    assert report.passed
    assert all("K from 0 to 3" in test.mode for test in report.law)
    assert report.modes
    assert all(mode.num_accepted > 0 for mode in report.modes)


def test_another_seed_draws_other_answers(pair: tuple[str, str]) -> None:
    first, other = (verify(options(pair, seed=seed, samples=32)) for seed in (1, 2))
    assert [t.fit for t in first.law] != [t.fit for t in other.law]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"numbers": (0,)}, "nothing to verify"),
        ({"samples": 3}, "proves nothing"),
        ({"oracle": "crystal"}, "transformers or engine"),
        ({"methods": ("typical",)}, "rejection and block"),
        ({"parts": ("laws",)}, "law, parity, seeds"),
    ],
)
def test_bad_options_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        options(("target", "draft"), **changes)


def test_what_an_engine_says_of_a_wrong_prompt_is_passed_on(pair: tuple[str, str]) -> None:
    with pytest.raises(InvalidRequestError, match="prompt 1 is text, and there is no tokenizer"):
        verify(options(pair, prompts=["hello"]))


def test_nothing_to_say_is_no_pass(pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.verify.law_check.MIN_GROUP", 1000)
    with pytest.raises(PacelineError, match="more than --samples 32"):
        verify(options(pair, samples=32))


def _calling_itself_fp8(model: str, **arguments: Any) -> LLM:
    """A CPU has no FP8 products: an engine that only says so."""
    llm = LLM(model, **arguments)
    table = llm.describe() | {"target quantization": "fp8 (E4M3), a scale a row, quantised while loading"}
    llm.describe = lambda: table  # type: ignore[method-assign]
    return llm


def test_an_fp8_target_is_held_to_its_own_law_and_rounding(pair: tuple[str, str]) -> None:
    report = verify(options(pair, parts=("parity",)), make_llm=_calling_itself_fp8)
    assert report.about["oracle"] == EngineOracle.name
    assert report.about["dtype"] == "float32 with FP8"
    with pytest.raises(ConfigurationError, match="before they were quantised"):
        verify(options(pair, parts=("parity",), oracle="transformers"), make_llm=_calling_itself_fp8)


def test_quantizing_for_a_verification_needs_no_dtype(pair: tuple[str, str]) -> None:
    asked: list[str] = []

    def watched(model: str, **arguments: Any) -> LLM:
        asked.append(arguments["dtype"])
        raise PacelineError("enough is known")

    for engine in ({"quantization": "fp8"}, {}):
        with pytest.raises(PacelineError, match="enough"):
            verify(options(pair, engine=engine), make_llm=watched)
    assert asked == ["bfloat16", "float32"]
