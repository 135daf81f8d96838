"""paceline tune: from costs and acceptance to a K for every batch, and to two configurations."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from engine.speculation_simulator import cpu_costs, gpu_costs
from model.pairs import make_pair
from model.tiny import make_tiny

from paceline.arguments import resolve_arguments
from paceline.cli.tune import run_tune
from paceline.errors import ConfigurationError, PacelineError
from paceline.sequence import SpeculationCounts
from paceline.tune.run import Options, tune, weigh
from paceline.tune.schedule import best_by_batch, ranges, shown_batches

GOOD = [0.78**place for place in range(1, 8)]


def test_the_best_k_falls_with_the_batch_as_the_costs_say() -> None:
    found = best_by_batch(gpu_costs(), GOOD, range(1, 129), positions=0.0, budget=2048)
    assert (found[0].k, found[127].k) == (7, 1)
    assert [entry.k for entry in found] == sorted((entry.k for entry in found), reverse=True)
    assert found[0].gain == pytest.approx(3.16, rel=0.02)
    joined = ranges(found)
    assert joined[0][0] == 1
    assert joined[-1][1] == 128
    assert all(after[0] == before[1] + 1 for before, after in pairwise(joined))
    assert best_by_batch(cpu_costs(), GOOD, [32], positions=0.0, budget=512)[0].k == 0
    assert best_by_batch(gpu_costs(), GOOD, [64], positions=0.0, budget=128)[0].k == 1, "no more tokens in a step"
    assert shown_batches(48) == [1, 2, 4, 8, 16, 32, 48]
    assert shown_batches(1) == [1]


def counted(passes: int, rate: float, places: int = 7) -> SpeculationCounts:
    kept = [round(passes * rate**place) for place in range(1, places + 1)]
    return SpeculationCounts(passes, passes * places, sum(kept), kept)


def test_configurations_for_both_engines() -> None:
    found = weigh(gpu_costs(), counted(1000, 0.78), model="m", draft="d", most=7, max_num_seqs=128, budget=2048,
                  positions=0.0)  # fmt: skip
    assert found.paceline_config() == {"model": "d", "num_speculative_tokens": 7, "adaptive": True}
    made = found.vllm_config()
    assert (made["method"], made["model"], made["num_speculative_tokens"]) == ("draft_model", "d", 7)
    schedule = made["num_speculative_tokens_per_batch_size"]
    assert all(len(entry) == 3 and all(isinstance(value, int) for value in entry) for entry in schedule)
    assert "try --num-speculative-tokens 10" in found.notes[0]
    useless = weigh(cpu_costs(), counted(50, 0.0), model="m", draft=None, most=7, max_num_seqs=8, budget=512,
                    positions=0.0)  # fmt: skip
    assert useless.vllm_config()["num_speculative_tokens_per_batch_size"] == [[1, 8, 0]]
    assert useless.vllm_config()["method"] == "ngram"
    assert ["Only 50 passes" in useless.notes[0], "pays at no batch size" in useless.notes[1]] == [True, True]
    with pytest.raises(PacelineError, match="No token was drafted"):
        weigh(cpu_costs(), SpeculationCounts(), model="m", draft=None, most=7, max_num_seqs=8, budget=512, positions=0)


def test_passes_that_found_nothing_to_draft_count_as_well() -> None:
    """An n-gram has drafts where the text repeats: those it has may all be kept, and it brings little even so."""

    def gain(passes: int | None, *, gpu: bool, batch: int) -> float:
        costs = gpu_costs() if gpu else cpu_costs()
        found = weigh(costs, counted(1000, 0.9), model="m", draft=None, most=7, max_num_seqs=8, budget=512,
                      positions=0.0, num_passes=passes)  # fmt: skip
        return found.best[batch - 1].gain

    for gpu in (True, False):
        always, seldom = gain(1000, gpu=gpu, batch=1), gain(5000, gpu=gpu, batch=1)
        assert gain(None, gpu=gpu, batch=1) == always
        assert 1.0 < seldom < 1.0 + 0.2 * sum(0.9**place for place in range(1, 8)) < always, "at most the tokens"
    # One row's drafts are a captured step's for all; an eager step pays by the row.
    plain = weigh(gpu_costs(), counted(1000, 0.9), model="m", draft=None, most=7, max_num_seqs=8, budget=512,
                  positions=0.0, num_passes=5000)  # fmt: skip
    assert plain.drafting == pytest.approx(0.2)
    assert gain(5000, gpu=True, batch=8) < gain(5000, gpu=True, batch=1)


def test_an_ngrams_files_say_what_it_was_measured_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    model = make_tiny("llama", tmp_path)
    wanted = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3, "prompt_lookup_min": 1,
              "rejection_sample_method": "block"}  # fmt: skip
    engine = {"model": str(model), "speculative_config": wanted, "max_num_seqs": 2, "dtype": "float32",
              "skip_tokenizer_init": True, "device": "cpu"}  # fmt: skip
    found = tune(Options(engine, [[3, 7] * 12], max_tokens=24), say=lambda line: None)
    assert wanted.items() - {("num_speculative_tokens", 2)} <= found.paceline_config().items()
    made = found.vllm_config()
    assert (made["prompt_lookup_max"], made["prompt_lookup_min"]) == (3, 1)
    assert 0.0 < found.drafting <= 1.0


def test_a_wrong_prompt_is_told_before_anything_is_loaded(tmp_path: Path) -> None:
    target, draft = make_pair(tmp_path)
    said: list[str] = []
    engine = {"model": str(target), "speculative_model": str(draft), "skip_tokenizer_init": True, "device": "cpu"}
    with pytest.raises(PacelineError):
        tune(Options(engine, ["a text, and no tokenizer"]), say=said.append)
    assert said == []


def test_a_real_pair_from_prompts_to_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    (tmp_path / "pair").mkdir()
    target, draft = make_pair(tmp_path / "pair")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt_token_ids": [3 + i, 7, 9]}) + "\n" for i in range(6)))
    engine = {"speculative_model": str(draft), "num_speculative_tokens": 3, "max_num_seqs": 4, "dtype": "float32",
              "skip_tokenizer_init": True, "device": "cpu"}  # fmt: skip
    run_tune(str(target), engine, prompts, tmp_path / "out", max_tokens=24, temperature=0.0, raw=True)
    shown = capsys.readouterr().out
    assert "best K" in shown
    assert shown.count(" ms") == 3, "1, 2 and 4 sequences"
    made = json.loads((tmp_path / "out" / "paceline.json").read_text())
    resolved = resolve_arguments({"model": str(target), "speculative_config": made, "skip_tokenizer_init": True})
    assert resolved.config.speculative is not None
    assert resolved.config.speculative.adaptive
    vllm = json.loads((tmp_path / "out" / "vllm.json").read_text())
    assert vllm["num_speculative_tokens_per_batch_size"][-1][1] == 4
    assert Path(vllm["model"]).is_dir(), "vLLM knows none of our names"
    assert Path(vllm["model"]).is_absolute()
    assert len(list((tmp_path / "home" / "costs").glob("*.json"))) == 1


def test_without_a_draft_there_is_nothing_to_tune(tmp_path: Path) -> None:
    model = make_tiny("llama", tmp_path)
    with pytest.raises(ConfigurationError, match="Nothing drafts"):
        tune(Options({"model": str(model), "skip_tokenizer_init": True}, [[3, 4]]), say=lambda line: None)
