"""paceline bench: shapes, synthetic acceptance, ceilings, what is refused; no engine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model.fp8_checkpoints import quantization_config

from paceline.bench.acceptance import SyntheticAcceptance, expected_tokens, rate_for_length
from paceline.bench.ceiling import Ceiling, ModelBytes, model_bytes
from paceline.bench.measure import Run
from paceline.bench.offline import Case
from paceline.bench.report import result_table, summaries, warnings
from paceline.bench.shapes import SHAPES, locate_model
from paceline.bench.sweep import Models, Sweep, plan_engines
from paceline.cli import main
from paceline.errors import ConfigurationError
from paceline.models.architecture import Architecture, read_architecture
from paceline.models.quantization import LinearFormats

# Billions of parameters, as the models' cards say.
SIZES = {
    "llama-3.1-8b": 8.03, "llama-3.1-70b": 70.55, "llama-3.1-405b": 405.85, "llama-3.2-1b": 1.236,
    "llama-3.2-3b": 3.213, "llama-3.3-70b": 70.55, "smollm2-135m": 0.1345, "smollm2-360m": 0.3618,
    "smollm2-1.7b": 1.711, "qwen2.5-0.5b": 0.494, "qwen2.5-7b": 7.616, "qwen2.5-72b": 72.71, "qwen3-0.6b": 0.596,
    "qwen3-8b": 8.19, "qwen3-32b": 32.76, "mistral-7b-v0.3": 7.248,
}  # fmt: skip


def architecture(shape: str, folder: Path) -> Architecture:
    return read_architecture(Path(locate_model(shape, folder).model))


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_have_the_published_sizes(tmp_path: Path, shape: str) -> None:
    arch = architecture(shape, tmp_path)
    linears = model_bytes(arch, LinearFormats(), dtype_bytes=2, kv_bytes=2).linear_parameters
    tables = arch.vocab_size * arch.hidden_size * (1 if arch.tied_embeddings else 2)
    assert (linears + tables) / 1e9 == pytest.approx(SIZES[shape], rel=2e-3)


def test_ceiling_of_a_70b_in_fp8_is_the_measured_one(tmp_path: Path) -> None:
    """68.5 GB in 80 layers and 2.1 GB in a BF16 head at 4.53 TB/s: 15.6 ms a step (docs' figure for one H200)."""
    arch = architecture("llama-3.1-70b", tmp_path)
    target = model_bytes(arch, LinearFormats(decoder=True), dtype_bytes=2, kv_bytes=2)
    assert target.weights / 1e9 == pytest.approx(70.6, abs=0.1)
    assert target.kv_per_position == 2 * 8 * 128 * 80 * 2
    ceiling = Ceiling(target, None, 4.53e12)
    assert ceiling.step_seconds(1, 0, 0) * 1e3 == pytest.approx(15.6, abs=0.05)


def test_ceiling_counts_the_draft_k_times() -> None:
    ceiling = Ceiling(ModelBytes(1000, 10, 0), ModelBytes(100, 1, 0), 1.0)
    assert ceiling.step_bytes(2, 3, 5) == 1000 + 2 * 5 * 10 + 3 * (100 + 2 * 5 * 1)


def test_an_fp8_checkpoint_is_read_as_fp8(tmp_path: Path) -> None:
    config = SHAPES["llama-3.2-3b"] | {"quantization_config": quantization_config("compressed-dynamic")}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    arch = read_architecture(Path(locate_model(str(path), tmp_path / "to").model))
    formats = LinearFormats(decoder=True, checkpoint=arch.quantization)
    plain, fp8 = (model_bytes(arch, f, dtype_bytes=2, kv_bytes=2).weights for f in (LinearFormats(), formats))
    head = 2 * arch.vocab_size * arch.hidden_size
    assert (fp8 - head) / (plain - head) == pytest.approx(0.5, abs=0.002)  # and a scale a row


@given(rate=st.floats(0.0, 1.0), k=st.integers(1, 8))
def test_a_length_gives_back_its_rate(rate: float, k: int) -> None:
    assert rate_for_length(expected_tokens(rate, k), k) == pytest.approx(rate, abs=1e-6)


def test_figures_of_the_design() -> None:
    assert expected_tokens(0.78, 5) == pytest.approx(3.52, abs=0.005)
    acceptance = SyntheticAcceptance(length=4.9)
    assert acceptance.conditional_rate(3) == 1.0
    assert acceptance.note(3) == "K=3 emits at most 4 tokens a pass: 4.9 is out of reach, and all drafts are kept."
    assert acceptance.note(5) is None
    assert sum(acceptance.cumulative_rates(5)) + 1 == pytest.approx(4.9)
    assert SyntheticAcceptance(rate=0.5).cumulative_rates(3) == [0.5, 0.25, 0.125]


def run(k: int, seconds: float, **fields: Any) -> Run:
    return Run(k=k, ttft_seconds=[0.5, 1.5], prefill_seconds=2.0, decode_seconds=seconds, decode_tokens=100, **fields)


def test_derived_figures_come_from_the_median_run() -> None:
    sweep = Sweep(batches=(2,), ks=(0, 2), input_len=10, output_len=20)
    plain, bare = (
        Case(2, 0, loaded, None, [run(0, s, decode_steps=50)]) for loaded, s in ((True, 20.0), (False, 16.0))
    )
    steps = {"decode_steps": 20, "captured_steps": 15, "full_steps": 10, "full_seconds": 4.0}
    parts = {
        "draft_seconds": 2.0,
        "verify_seconds": 4.0,
        "accept_seconds": 1.0,
        "full_draft_seconds": 1.0,
        "full_verify_seconds": 2.0,
        "full_accept_seconds": 0.5,
        "num_drafts": 40,
        "num_passes": 50,
    }
    runs = [run(2, seconds, **steps, **parts, num_accepted_tokens=60) for seconds in (8.0, 10.0, 40.0)]
    ceiling = Ceiling(ModelBytes(90, 1, 1000), ModelBytes(0, 0, 0), 1000.0)
    none, first, second = summaries([Case(2, 2, True, 0.7, runs), plain, bare], ceiling, sweep)
    assert (none["draft_loaded"], none["k"], none["speed_up"]) == (False, 0, 1.25)
    assert (first["k"], second["k"]) == (0, 2)
    assert second["decode_tokens_per_second"] == 10.0
    assert second["tokens_per_second_per_user"] == 5.0
    assert (first["speed_up"], second["speed_up"]) == (1.0, 2.0)
    assert (second["tokens_per_pass"], second["tokens_per_drafted_pass"]) == (2.0, 2.5)  # 10 of 50 passes had no drafts
    assert second["graph_hit_rate"] == 0.75
    assert second["step_ms"] == pytest.approx(400)
    assert second["fraction_of_ceiling"] == pytest.approx((90 + 2 * 20) / 1000 / 0.4)
    parts_of_a_step = [second[f"{part}_ms"] for part in ("draft", "verify", "accept", "host_gap")]
    assert parts_of_a_step == [100, 200, 50, 50]  # of full steps
    assert sum(parts_of_a_step) == second["step_ms"]
    assert second["speed_up_range"] is None  # K=0 ran once
    assert (second["ttft_ms_mean"], second["ttft_ms_max"]) == (1000, 1500)
    assert second["prefill_tokens_per_second"] == 10
    assert second["prefill_tflops"] == pytest.approx(2 * 1000 * 20 / 2.0 / 1e12)


def test_a_draft_that_was_laid_to_rest_and_preemptions_are_told() -> None:
    resting, preempted = run(2, 1.0, speculation_rested=True), run(0, 1.0, num_preemptions=1, speculation_rested=True)
    found = warnings([Case(2, 2, True, None, [resting]), Case(4, 0, True, None, [preempted])])
    assert [note.split(": ")[0] for note in found] == ["batch 2, K=2", "batch 4, K=0"]
    assert "let it rest" in found[0]
    assert "preempted" in found[1]


def test_repeats_tell_how_far_a_gain_varies_and_a_step_below_the_ceiling_is_explained() -> None:
    sweep = Sweep(batches=(1,), ks=(0, 2), repeats=2)
    full = {"full_steps": 10, "full_seconds": 4.0}
    plain = Case(1, 0, True, None, [run(0, seconds, **full) for seconds in (10.0, 8.0)])
    case = Case(1, 2, True, None, [run(2, seconds, **full) for seconds in (5.0, 5.0)])
    rows = summaries([plain, case], Ceiling(ModelBytes(90, 1, 1000), ModelBytes(9, 1, 0), 200.0), sweep)
    assert [row["speed_up_range"] for row in rows] == [None, (1.6, 2.0)]
    headings = [str(column.header) for column in result_table(rows).columns]
    assert headings[4:6] == ["vs K=0", "repeats"]
    assert "repeats" not in [str(column.header) for column in result_table(rows[:1]).columns]
    (said,) = warnings([plain, case], rows)
    assert said.startswith("batch 1, K=0; batch 1, K=2: above 100 % of the ceiling")


def test_an_adaptive_case_stands_last_and_has_no_ceiling_of_its_own() -> None:
    sweep = Sweep(batches=(2,), ks=(0, 3), adaptive=True)
    ceiling = Ceiling(ModelBytes(90, 1, 1000), ModelBytes(0, 0, 0), 1000.0)
    full = {"full_steps": 10, "full_seconds": 4.0}
    cases = [Case(2, 3, True, 0.7, [run(3, 5.0, **full)], adaptive=True), Case(2, 3, True, 0.7, [run(3, 8.0, **full)])]
    cases.append(Case(2, 0, True, None, [run(0, 10.0, **full)]))
    rows = summaries(cases, ceiling, sweep)
    assert [(row["k"], row["adaptive"]) for row in rows] == [(0, False), (3, False), (3, True)]
    assert [row["speed_up"] for row in rows] == [1.0, 1.25, 2.0]
    assert [row["fraction_of_ceiling"] is None for row in rows] == [False, False, True]


def test_an_adaptive_engine_is_made_for_the_largest_k(tmp_path: Path) -> None:
    models = Models(model="smollm2-135m", draft="smollm2-135m", engine={"device": "cpu"})
    for ks, most in (((0, 3), 3), ((0,), 5)):
        (plan,), _ = plan_engines(models, Sweep(ks=ks, adaptive=True, input_len=8, output_len=8), tmp_path / str(most))
        assert plan.config.speculative is not None
        assert plan.config.speculative.adaptive
        assert (plan.config.num_speculative_tokens, plan.most, plan.ks, plan.has_draft) == (most, most, ks, True)


def test_an_adaptive_k_needs_a_draft_and_rates_that_do_not_depend_on_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="-k adaptive needs something that drafts"):
        plan_engines(Models(model="smollm2-135m"), Sweep(adaptive=True), tmp_path)
    length = Models(model="smollm2-135m", draft="smollm2-135m", acceptance=SyntheticAcceptance(length=3.0))
    with pytest.raises(ConfigurationError, match="made for one K"):
        plan_engines(length, Sweep(adaptive=True), tmp_path)


def plans(folder: Path, **changes: Any) -> list[tuple[tuple[int, ...], int, tuple[float, ...]]]:
    """(Ks, K of the engine, its conditional rates) of each engine."""
    sweep = Sweep(batches=(1, 4), ks=(0, 3, 5), input_len=8, output_len=8)
    models = Models(model="smollm2-135m", draft="smollm2-135m", engine={"device": "cpu"}, **changes)
    found, _ = plan_engines(models, sweep, folder)
    speculative = [plan.config.speculative for plan in found]
    assert all(s is not None for s in speculative)
    return [
        (plan.ks, s.num_speculative_tokens, s.synthetic_acceptance_rates)
        for plan, s in zip(found, speculative, strict=True)
        if s is not None
    ]


def test_one_engine_for_all_ks_unless_the_rates_depend_on_k(tmp_path: Path) -> None:
    assert plans(tmp_path) == [((0, 3, 5), 5, ())]
    ((ks, k, rates),) = plans(tmp_path, acceptance=SyntheticAcceptance(rate=0.78))
    assert (ks, k, rates) == ((0, 3, 5), 5, pytest.approx((0.78,) * 5))
    first, second = plans(tmp_path, acceptance=SyntheticAcceptance(length=4.9))
    assert first == ((0, 3), 3, (1.0, 1.0, 1.0))
    assert second[:2] == ((5,), 5)
    assert expected_tokens(second[2][0], 5) == pytest.approx(4.9)


def test_k_none_adds_an_engine_that_has_no_draft(tmp_path: Path) -> None:
    sweep = Sweep(ks=(0, 3), without_draft=True, input_len=8, output_len=8)
    models = Models(model="smollm2-135m", draft="smollm2-135m", engine={"device": "cpu"})
    (bare, drafting), _ = plan_engines(models, sweep, tmp_path)
    assert (bare.ks, bare.has_draft, bare.config.speculative) == ((0,), False, None)
    assert (drafting.ks, drafting.has_draft, drafting.config.num_speculative_tokens) == ((0, 3), True, 3)
    assert bare.config.model == drafting.config.model


def test_names_budgets_and_lengths_reach_the_engine(tmp_path: Path) -> None:
    sweep = Sweep(batches=(200,), ks=(5,), input_len=8, output_len=9)
    models = Models(model="smollm2-360m", draft="smollm2-135m", engine={"device": "cpu", "dtype": "float32"})
    (plan,), notes = plan_engines(models, sweep, tmp_path)
    config = plan.config
    assert config.draft is not None
    assert (config.model.name, config.draft.name) == ("smollm2-360m", "smollm2-135m")
    assert (config.model.load_format, config.draft.load_format) == ("dummy", "dummy")
    assert (config.model.max_model_len, config.scheduler.max_num_seqs) == (17, 200)
    assert config.scheduler.max_num_batched_tokens >= 200 * 6
    assert not config.cache.enable_prefix_caching
    assert len(notes) == 1
    assert "Give --synthetic-acceptance" in notes[0]


def refusal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    monkeypatch.setattr(sys, "argv", ["paceline", "bench", "offline", *words])
    monkeypatch.setenv("NO_COLOR", "1")
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--model", "llama-3.1-70"), "Unknown model or shape 'llama-3.1-70'. Did you mean 'llama-3.1-70b'?"),
        (("--model", "smollm2-135m", "-k", "5"), "-k 5 needs something that drafts"),
        (("--model", "smollm2-135m", "-k", ""), "-k : give whole numbers"),
        (("--model", "smollm2-135m", "-k", "x"), "-k x: give whole numbers, separated by commas"),
        (("--model", "smollm2-135m", "--batch", "0"), "--batch must be from 1 to 65,536 sequences, not 0"),
        (("--model", "smollm2-135m", "--output-len", "1"), "--output-len must be from 2 to"),
        (("--model", "smollm2-135m", "--input-len", "9000"), "more than the 8192 positions"),
        (("--model", "smollm2-135m", "--synthetic-acceptance", "0.5"), "Synthetic acceptance needs drafts"),
        (("--model", "smollm2-135m", "--synthetic-acceptance", "4.9"), "is not a probability"),
        (("--model", "smollm2-135m", "--synthetic-acceptance-length", "0.5"), "every pass emits at least 1 token"),
        (
            ("--model", "a", "--synthetic-acceptance", "0.5", "--synthetic-acceptance-length", "2"),
            "either --synthetic-acceptance or",
        ),
        (("--model", "smollm2-135m", "--draft-quantization", "fp8"), "leave --draft-quantization out"),
        (
            ("--model", "smollm2-135m", "--draft", "ngram", "-k", "2", "--quantize-draft-lm-head"),
            "leave --quantize-draft-lm-head out",
        ),
        (("--model", "smollm2-135m", "--bandwidth", "0"), "--bandwidth must be from 0.001 to"),
        (("--model", "smollm2-135m", "--temperature", "-1", "--repeats", "0"), "--repeats must be from 1"),
        (("--model", "smollm2-135m", "--seed", "9" * 30), "--seed must be from"),
        (("--model", "smollm2-135m", "-k", "9" * 30, "--draft", "ngram"), "-k must be from 0 to"),
        (("--model", "smollm2-135m", "--out", "/proc/none/x"), "--out '/proc/none/x' cannot be written"),
        (("--model", "smollm2-135m", "--out", "/"), "is a folder"),
        (("--model", "smollm2-135m", "--quantization", "fp8", "--device", "cpu"), "FP8 kernels need a GPU"),
        (("--model", "llama-3.1-8b", "--draft", "smollm2-135m", "-k", "2"), "cannot work together|knows 49152"),
    ],
)
def test_refusals(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    said = refusal(monkeypatch, capsys, *words)
    assert any(part in said for part in message.split("|")), said


def test_a_config_that_is_no_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("{")
    with pytest.raises(ConfigurationError, match=r"cannot be read as a config\.json"):
        locate_model(str(path), tmp_path)
