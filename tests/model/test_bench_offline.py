"""paceline bench offline on a CPU with tiny shapes: the real engine, from the command line to the JSON document."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from model.pairs import make_llm, make_pair, prompts, texts
from model.tiny import make_tiny
from model.torch_forward import torch_forward

from paceline import SamplingParams
from paceline.bench import offline
from paceline.bench.measure import Run, Workload, measure
from paceline.build import assemble_engine
from paceline.cli import main
from paceline.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig, SpeculativeConfig
from paceline.engine.engine import Engine
from paceline.errors import ConfigurationError
from paceline.speculative.captured import CapturedDecoder
from paceline.worker.worker import Worker


def bench(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """The document on the last line of standard output; progress goes to standard error."""
    monkeypatch.setattr(sys, "argv", ["paceline", "bench", "offline", "--bandwidth", "10", "--device", "cpu", *words])
    main_exit = None
    try:
        main()
    except SystemExit as exit_:
        main_exit = exit_.code
    assert not main_exit
    output = capsys.readouterr().out
    assert output.index("Ceiling") < output.index("Decode")
    document: dict[str, Any] = json.loads(output.splitlines()[-1])
    return document


def shape(folder: Path) -> str:
    path = make_tiny("llama3", folder)
    (path / "model.safetensors").unlink()
    return str(path / "config.json")


def test_from_the_command_line_to_the_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config, out = shape(tmp_path), tmp_path / "out.json"
    found = bench(
        monkeypatch, capsys, "--model", config, "--draft", config, "-k", "none,0,2", "--batch", "1,3",
        "--synthetic-acceptance", "1", "--input-len", "9", "--output-len", "13", "--repeats", "2", "--out", str(out),
    )  # fmt: skip
    assert json.loads(out.read_text()) == found
    assert {"command", "commit", "date", "hardware", "versions"} <= set(found)
    assert found["ceiling"]["bandwidth"] == 10e9
    assert [(row["batch"], row["k"], row["draft_loaded"]) for row in found["results"]] == [
        (batch, *rest) for batch in (1, 3) for rest in ((0, False), (0, True), (2, True))
    ]
    assert [row["tokens_per_pass"] for row in found["results"]] == [1.0, 1.0, 3.0] * 2
    assert all(run["decode_tokens"] == 12 * run["batch"] for run in found["runs"])  # the first is prefill's
    assert [run["decode_steps"] for run in found["runs"]] == [12] * 4 + [12, 12, 4, 4] * 2
    assert len(found["configurations"]) == 2
    assert all(run["full_steps"] == run["decode_steps"] - 1 for run in found["runs"])  # all end in the last one
    assert all(len(run["ttft_seconds"]) == run["batch"] for run in found["runs"])
    assert any("SYNTHETIC ACCEPTANCE" in note for note in found["notes"])


def test_a_k_that_is_chosen_for_each_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))  # costs that are measured at start
    config = shape(tmp_path)
    found = bench(
        monkeypatch, capsys, "--model", config, "--draft", config, "-k", "0,adaptive", "--batch", "2",
        "--synthetic-acceptance", "1", "--input-len", "9", "--output-len", "40",
    )  # fmt: skip
    fixed, chosen = found["results"]
    assert [(row["k"], row["adaptive"]) for row in (fixed, chosen)] == [(0, False), (5, True)]
    assert [run["adaptive"] for run in found["runs"]] == [False, True]
    assert all(run["decode_tokens"] == 2 * 39 for run in found["runs"])
    assert not any(run["speculation_rested"] for run in found["runs"])
    for row, run in zip(found["results"], found["runs"], strict=True):
        assert row["tokens_per_pass"] == run["decode_tokens"] / run["num_passes"]
        assert run["num_drafts"] <= run["num_passes"] <= 2 * run["decode_steps"]
        parts = sum(row[f"{part}_ms"] for part in ("draft", "verify", "accept", "host_gap"))
        assert parts == pytest.approx(row["step_ms"])
    assert found["runs"][0]["num_passes"] == 2 * 39


def test_a_run_that_is_cut_short_keeps_what_it_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, out = shape(tmp_path), tmp_path / "out.json"
    real = offline.measure

    def cut_short(engine: Engine, workload: Workload, k: int) -> Run:
        if workload.batch == 2:
            raise KeyboardInterrupt
        return real(engine, workload, k)

    monkeypatch.setattr(offline, "measure", cut_short)
    words = ["--model", config, "--batch", "1,2", "--input-len", "5", "--output-len", "6", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["paceline", "bench", "offline", "--bandwidth", "10", "--device", "cpu", *words])
    with pytest.raises(SystemExit, match="130"):
        main()
    kept = json.loads(out.read_text())
    assert [row["batch"] for row in kept["results"]] == [1]
    assert "The run had not ended when this was written." in kept["notes"]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_real_weights_and_real_acceptance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target, draft = make_pair(tmp_path)
    found = bench(
        monkeypatch, capsys, "--model", str(target), "--draft", str(draft), "-k", "3", "--output-len", "30",
        "--input-len", "5",
    )  # fmt: skip
    (row,) = found["results"]
    assert 1.2 < row["tokens_per_pass"] < 4.0
    assert row["speed_up"] is None  # no K=0 beside it
    assert found["options"]["models"]["acceptance"] is None


def engine_of(folder: Path, k: int) -> Engine:
    target, draft = make_pair(folder)
    model, small = (
        ModelConfig(path=path, name=path.name, max_model_len=64, vocab_size=101) for path in (target, draft)
    )
    config = EngineConfig(
        model=model,
        speculative=SpeculativeConfig(method="draft_model", num_speculative_tokens=k, draft=small),
        cache=CacheConfig(num_blocks=30),
        scheduler=SchedulerConfig(max_num_seqs=4),
    )
    return assemble_engine(config, None)


def test_phases_by_a_clock_that_counts(tmp_path: Path) -> None:
    """A clock that is a second further at each look: two looks a prefill step, two a decode step."""
    ticks = itertools.count()
    workload = Workload(batch=2, input_len=5, output_len=4)
    run = measure(engine_of(tmp_path, 2), workload, 0, clock=lambda: float(next(ticks)))
    assert run.ttft_seconds == [1.0, 1.0]
    assert run.prefill_seconds == 2.0
    assert (run.decode_steps, run.decode_seconds, run.decode_tokens) == (3, 3.0, 6)
    assert (run.full_steps, run.num_drafts, run.tokens_per_pass) == (2, 0, 1.0)


def test_steps_that_run_ahead_are_counted_once(tmp_path: Path) -> None:
    """Captured steps (here by their references): what is under way when the last sequence ends is not measured."""
    with torch_forward():
        engine = engine_of(tmp_path, 3)
    worker: Worker = engine._executor._worker  # type: ignore[attr-defined]
    for runner in filter(None, (worker.target, worker.draft)):
        runner.use_fused = True
    worker.captured = CapturedDecoder(
        worker.target, worker.draft, block_size=16, vocab_size=101, max_num_seqs=4, max_model_len=64,
        draft_counts=[0, 1, 3],
    )  # fmt: skip
    worker.captured.capture()
    for k in (3, 0, 2):
        run = measure(engine, Workload(batch=3, input_len=7, output_len=20), k)
        assert run.captured_steps == run.decode_steps
        assert run.decode_tokens == 3 * 19
        assert run.num_draft_tokens <= k * run.num_drafts
        assert (run.num_drafts > 0) == (k > 0)
        assert not engine.has_unfinished()


def test_k_can_be_changed_between_runs_and_not_beyond_what_was_made(tmp_path: Path) -> None:
    engine = engine_of(tmp_path, 3)
    workload = Workload(batch=1, input_len=5, output_len=20)
    drafted = {k: measure(engine, workload, k) for k in (3, 0, 1)}
    assert drafted[0].num_drafts == 0
    assert drafted[1].num_draft_tokens == drafted[1].num_drafts
    assert drafted[3].num_draft_tokens > 2 * drafted[3].num_drafts
    for k in (4, -1):
        with pytest.raises(ConfigurationError, match="this engine was made for 0 to 3"):
            engine.set_num_speculative_tokens(k)


def test_text_is_the_same_after_k_was_changed(tmp_path: Path) -> None:
    """Also with speculation off for a while and then on again, over a prefix cache that both have filled."""
    target, draft = make_pair(tmp_path)
    ids, params = prompts(4), SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    plain = texts(make_llm(target), ids, params)
    llm = make_llm(target, {"model": str(draft), "num_speculative_tokens": 4})
    engine = llm._running_engine()
    assert isinstance(engine, Engine)
    for k in (0, 4, 2, 0):
        engine.set_num_speculative_tokens(k)
        assert texts(llm, ids, params) == plain
