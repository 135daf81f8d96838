"""The offline API over a fake engine: inputs, order, outputs in vLLM's shape, streams, failures."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from server_fakes import FakeEngine, FakeTokenizer, fake_config

import paceline
from paceline import LLM, InvalidRequestError, SamplingParams
from paceline.arguments import Resolved
from paceline.errors import ConfigurationError


class FakeLLM(LLM):
    def _make_engine(self) -> FakeEngine:
        return FakeEngine(self.config)

    @property
    def engine(self) -> FakeEngine:
        assert isinstance(self._engine, FakeEngine)
        return self._engine


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeLLM]:
    resolved = Resolved(fake_config(), FakeTokenizer(), ("a note",))
    monkeypatch.setattr("paceline.llm.resolve_arguments", lambda arguments, progress: resolved)
    with FakeLLM(model="fake") as made:
        yield made
        assert not made._inbox


PARAMS = SamplingParams(max_tokens=4)


@pytest.mark.parametrize(
    ("prompts", "count"),
    [
        ("one two", 1),
        (["one", "two", "three"], 3),
        ([4, 5, 6], 1),
        ([[4, 5], [6]], 2),
        ({"prompt": "one"}, 1),
        ([{"prompt_token_ids": [4]}, "one", [5, 6]], 3),
        ([], 0),
    ],
)
def test_every_form_of_prompt(llm: FakeLLM, prompts: Any, count: int) -> None:
    outputs = llm.generate(prompts, PARAMS)
    assert [o.outputs[0].token_ids for o in outputs] == [[2, 3, 4, 5]] * count
    assert all(o.finished and o.outputs[0].text == " w2 w3 w4 w5" for o in outputs)


@pytest.mark.parametrize(
    ("prompts", "words"),
    [
        (7, "not int"),
        ([["a"]], "not list"),
        ({"promt": "x"}, "Did you mean 'prompt'"),
        ({"prompt": "x", "prompt_token_ids": [1]}, "A prompt is"),
        ("\ud800", "lone surrogate"),
        (["fine", []], r"prompts\[1\]: The prompt is empty"),
        ([[1] * 64], "too long"),
    ],
)
def test_wrong_prompts_are_refused_and_nothing_keeps_running(llm: FakeLLM, prompts: Any, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        llm.generate(prompts, PARAMS)
    assert not llm.engine.has_unfinished()


def test_results_are_in_the_order_of_the_prompts_whoever_finishes_first(llm: FakeLLM) -> None:
    outputs = llm.generate([[9], [8, 8], [7]], [SamplingParams(max_tokens=n) for n in (30, 1, 10)])
    assert [o.prompt_token_ids for o in outputs] == [[9], [8, 8], [7]]
    assert [len(o.outputs[0].token_ids) for o in outputs] == [30, 1, 10]


def test_as_many_parameters_as_prompts(llm: FakeLLM) -> None:
    with pytest.raises(InvalidRequestError, match="2 prompts and 1 sampling"):
        llm.generate(["a", "b"], [PARAMS])


def test_metrics(llm: FakeLLM) -> None:
    (output,) = llm.generate("a b c", SamplingParams(max_tokens=6, n=2))
    metrics = output.metrics
    assert metrics.first_token_time is not None
    assert metrics.finished_time is not None
    assert metrics.arrival_time <= metrics.first_token_time <= metrics.finished_time
    assert output.num_cached_tokens == 1
    spec = metrics.speculative_decoding
    assert (spec.num_drafts, spec.num_draft_tokens, spec.num_accepted_tokens) == (6, 6, 6)
    assert spec.num_accepted_tokens_per_pos == [6]
    assert spec.mean_acceptance_length == 2.0


def test_logprobs_have_vllms_shape(llm: FakeLLM) -> None:
    answer = llm.generate("a", SamplingParams(max_tokens=2, logprobs=2))[0].outputs[0]
    assert answer.logprobs is not None
    assert [list(entry) for entry in answer.logprobs] == [[2, 3], [3]]
    first = answer.logprobs[0][2]
    assert (first.logprob, first.rank, first.decoded_token) == (-0.5, 1, " w2")
    assert answer.cumulative_logprob == -1.0
    without = llm.generate("a", PARAMS)[0].outputs[0]
    assert without.logprobs is None
    assert without.cumulative_logprob is None


def test_a_request_that_fails_is_reported_and_its_neighbours_are_not_touched(llm: FakeLLM) -> None:
    good, bad = llm.generate([[4], [99]], PARAMS)
    assert good.outputs[0].finish_reason == "length"
    assert (bad.outputs[0].finish_reason, bad.outputs[0].error) == ("error", "NaN in the logits.")
    assert bad.finished


def test_chat(llm: FakeLLM) -> None:
    conversation = [{"role": "user", "content": "hello there"}]
    (output,) = llm.chat(conversation, PARAMS)
    assert output.prompt_token_ids[-1] == 5
    both = llm.chat([conversation, conversation], PARAMS, add_generation_prompt=False)
    assert [o.prompt_token_ids for o in both] == [output.prompt_token_ids[:-1]] * 2


def test_stream(llm: FakeLLM) -> None:
    deltas = list(llm.stream("a", SamplingParams(max_tokens=5)))
    assert [d.token_ids for d in deltas] == [[2, 3], [4, 5], [6]]
    assert deltas[-1].finish_reason == "length"
    assert next(llm.stream([{"role": "user", "content": "a"}], PARAMS)).num_prompt_tokens == 3
    with pytest.raises(InvalidRequestError, match="one prompt, not 2"):
        llm.stream([[4], [5]], PARAMS)


def test_streams_and_calls_side_by_side_get_their_own_tokens(llm: FakeLLM) -> None:
    long = llm.stream("a", SamplingParams(max_tokens=40))
    first = next(long)
    assert len(llm.generate("b", PARAMS)[0].outputs[0].token_ids) == 4
    assert [t for d in (first, *long) for t in d.token_ids] == list(range(2, 42))


def test_leaving_a_stream_aborts_it(llm: FakeLLM) -> None:
    stream = llm.stream("a", SamplingParams(max_tokens=1000))
    next(stream)
    stream.close()
    assert not llm.engine.has_unfinished()


def test_ctrl_c_aborts_everything(llm: FakeLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(llm.engine, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["a", "b"], PARAMS)
    assert not llm.engine.has_unfinished()


def test_long_work_shows_a_bar_on_a_terminal_and_nothing_elsewhere(
    llm: FakeLLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("paceline.progress._DELAY_SECONDS", 0.0)
    llm.generate(["a", "b"], PARAMS)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    llm.generate(["a", "b"], PARAMS, use_tqdm=False)
    assert capsys.readouterr() == ("", "")
    llm.generate(["a", "b"], PARAMS)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "2/2" in shown.err
    assert "tok/s, 100% of drafts accepted" in shown.err


def test_a_closed_llm_says_so(llm: FakeLLM) -> None:
    llm.close()
    llm.close()
    with pytest.raises(ConfigurationError, match="closed"):
        llm.generate("a")


def test_beam_search_is_refused_where_it_is_asked_for() -> None:
    SamplingParams(temperature=0.7, top_p=0.9, max_tokens=512, use_beam_search=False)
    with pytest.raises(InvalidRequestError, match="beam search"):
        SamplingParams(use_beam_search=True)
    with pytest.raises(InvalidRequestError, match="not ranked"):
        SamplingParams(best_of=4)


def test_the_package_names_exist_and_cost_no_torch() -> None:
    assert all(getattr(paceline, name) for name in paceline.__all__)
    code = (
        "import sys, paceline.cli, paceline.llm; from paceline import LLM;"
        "print('torch' in sys.modules, 'transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.parametrize("params", [{"temperature": 1}, [{"temperature": 1}], "greedy", [SamplingParams(), None, 3]])
def test_sampling_params_of_another_type_are_refused(llm: FakeLLM, params: Any) -> None:
    with pytest.raises(InvalidRequestError, match="must be SamplingParams") as caught:
        llm.generate("a", params)
    assert caught.value.param == "sampling_params"


@pytest.mark.parametrize("messages", [None, 3, "hello", b"hello", {"role": "user", "content": "a"}, [None], [3], ["a"]])
def test_messages_that_are_none_are_refused(llm: FakeLLM, messages: Any) -> None:
    with pytest.raises(InvalidRequestError):
        llm.chat(messages, PARAMS)


def test_salt_and_priority_reach_the_engine(llm: FakeLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, str]] = []
    add = llm.engine.add_request
    monkeypatch.setattr(llm.engine, "add_request", lambda r: (seen.append((r.priority, r.cache_salt)), add(r)))
    prompts: list[Any] = [{"prompt": "a", "cache_salt": "x"}, {"prompt_token_ids": [4], "cache_salt": "y"}, "b"]
    llm.generate(prompts, PARAMS, priority=[3, -1, 0])
    llm.generate(prompts[0], PARAMS, priority=7)
    list(llm.stream({"prompt": "a", "cache_salt": "z"}, PARAMS))
    assert seen == [(3, "x"), (-1, "y"), (0, ""), (7, "x"), (0, "z")]


@pytest.mark.parametrize("priority", ["1", 1.5, True, [1], [1, 2, 3], [1, None], [1, 2**31], {}])
def test_a_wrong_priority_is_refused(llm: FakeLLM, priority: Any) -> None:
    with pytest.raises(InvalidRequestError, match="priority"):
        llm.generate(["a", "b"], PARAMS, priority=priority)


@pytest.mark.parametrize("salt", ["", 3, "x" * 257])
def test_a_wrong_salt_is_refused(llm: FakeLLM, salt: Any) -> None:
    with pytest.raises(InvalidRequestError, match="cache_salt"):
        llm.generate({"prompt": "a", "cache_salt": salt}, PARAMS)
