"""`paceline distill` as a user runs it, on a tiny target: kill -9, the same command again, the folder, the mistakes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from distill_toys import VOCAB, toy_directory, traffic
from safetensors.torch import load_file

from paceline import LLM, SamplingParams
from paceline.cli import main
from paceline.distill.folder import RunFolder, claim
from paceline.distill.model import load_llama
from paceline.distill.report import Transcript, by_category
from paceline.errors import ConfigurationError

SIZE = ("--hidden", "16", "--heads", "2", "--layers", "1", "--rows", "16", "--length", "32", "--batch", "8")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_directory(tmp_path_factory.mktemp("target"))


def paceline(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["paceline", *words])
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    try:
        main()
    except SystemExit as caught:
        return int(caught.code or 0)
    return 0


class Finished:
    """A run that was killed while it learnt, and then run again to its end."""

    def __init__(self, target: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.out = folder / "draft"
        questions = folder / "questions.jsonl"
        questions.write_text('{"category": "rivers", "turns": ["t9 t4 t3"]}\n')
        self.command = [
            "distill", str(target), "--out", str(self.out), *SIZE, "--steps", "80", "--checkpoint-every", "0",
            "--data", str(traffic(folder / "traffic.jsonl")), "--data-mix", "0.4", "--draft-vocab", "12",
            "--report-on", str(questions), "--optimizer", "muon:0.02:0.02",
        ]  # fmt: skip
        self.at_the_kill = self._kill_while_learning()
        self.status = paceline(monkeypatch, *self.command)
        self.log = [json.loads(line) for line in (self.out / "distill-run" / "log.jsonl").read_text().splitlines()]
        self.report: dict[str, Any] = json.loads((self.out / "report.json").read_text())

    def _kill_while_learning(self) -> int:
        """The step of the checkpoint that a SIGKILL left."""
        process = subprocess.Popen([sys.executable, "-m", "paceline.cli", *self.command], stderr=subprocess.DEVNULL)
        try:
            for _ in range(1800):
                state = RunFolder(self.out).load()
                if state is not None and state["step"] >= 20:
                    break
                assert process.poll() is None, "it ended before it could be killed"
                time.sleep(0.1)
        finally:
            process.kill()
            process.wait()
        state = RunFolder(self.out).load()
        assert state is not None
        return int(state["step"])


@pytest.fixture(scope="module")
def finished(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield Finished(target, tmp_path_factory.mktemp("run"), monkeypatch)


def test_a_killed_run_goes_on_and_the_draft_is_better_than_at_the_start(finished: Finished) -> None:
    assert finished.status == 0
    (resumed,) = [line for line in finished.log if line["event"] == "resumed"]
    assert resumed["step"] == finished.at_the_kill
    assert 20 <= finished.at_the_kill < 80
    learning = finished.report["learning"]
    assert learning["steps"] == 80
    for kind in ("chat", "document", "data"):
        before, after = learning["held_out_before"][kind], learning["held_out_after"][kind]
        assert after["forward_kl"] < before["forward_kl"]
        assert after["accepted_at_0.7"] > before["accepted_at_0.7"]


def test_the_report_says_what_the_draft_is_worth(finished: Finished) -> None:
    report = finished.report
    for tallies in (report["tokens_per_pass"]["greedy"], report["tokens_per_pass"]["sampled"]["by_category"]):
        assert set(tallies) == {"chat", "document", "data", "rivers", "all"}
        for tally in tallies.values():
            rising = [tally["tokens_per_pass"][str(k)] for k in range(1, 9)]
            assert rising == sorted(rising)
            assert 1.0 <= rising[0] <= 2.0
    for k in ("1", "4", "8"):
        turns = report["costs"][k]["turns_ms"]
        assert len(turns) == 3
        assert all(turn["step"] > turn["verify"] > 0 and turn["draft"] > 0 for turn in turns)
    best = max(report["speed_up"].items(), key=lambda item: item[1]["expected"])
    assert report["best_k"] == (int(best[0]) if best[1]["expected"] > 1 else 0)
    reduced = report["tokens_per_pass"]["reduced_head"]
    assert reduced["tokens"] == 12
    assert reduced["greedy"]["all"]["hit"] <= report["tokens_per_pass"]["greedy"]["all"]["hit"] + 0.05
    assert report["engine_agreement"] > 0.99  # the engine and the teacher are one model
    ElementTree.parse(finished.out / "report.svg")
    card = (finished.out / "README.md").read_text()
    for words in ("paceline serve", "vllm serve", "AutoModelForCausalLM", "| rivers |", "Seed 1", "K = 5"):
        assert words in card


def test_the_draft_loads_in_transformers_and_says_the_same(finished: Finished) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    ours = load_llama(finished.out, dtype=torch.float32, device=torch.device("cpu"))
    theirs = AutoModelForCausalLM.from_pretrained(finished.out, dtype=torch.float32)
    ids = torch.arange(20).unsqueeze(0)
    with torch.no_grad():
        torch.testing.assert_close(ours(ids) @ ours.table.T, theirs(ids).logits, atol=1e-4, rtol=1e-4)
    assert len(AutoTokenizer.from_pretrained(finished.out)) == VOCAB


def test_paceline_drafts_with_it_as_well_as_the_report_would_say(finished: Finished, target: Path) -> None:
    arguments: dict[str, Any] = {"model": str(target), "dtype": "float32", "max_model_len": 512, "max_num_seqs": 8}
    prompts = [[1, 5, 6, 3 + n, 4 + n, 2, 1, 7] for n in range(12)]
    params = SamplingParams(temperature=0.0, max_tokens=60, detokenize=False)

    def answers(llm: LLM) -> list[tuple[int, ...]]:
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
        return [tuple(output.outputs[0].token_ids) for output in outputs]

    with LLM(**arguments) as plain:
        expected = answers(plain)
    with LLM(
        **arguments, speculative_config={"model": str(finished.out), "num_speculative_tokens": 4, "adaptive": False}
    ) as llm:
        assert answers(llm) == expected
        measured = llm.stats().speculation.mean_acceptance_length
    transcripts = [Transcript("all", tuple(ids), answer) for ids, answer in zip(prompts, expected, strict=True)]
    draft = load_llama(finished.out, dtype=torch.float32, device=torch.device("cpu"))
    reported = by_category(transcripts, draft, ks=(4,))["all"].tokens_per_pass(4)
    assert reported > 1.3
    assert measured == pytest.approx(reported, rel=0.1)


def test_the_reduced_head_is_the_heads_rows_in_eagles_format(finished: Finished) -> None:
    whole, cut = (
        load_file(finished.out / "model.safetensors"),
        load_file(finished.out / "reduced" / "model.safetensors"),
    )
    tokens = torch.arange(12) + cut["d2t"]
    assert torch.equal(cut["lm_head.weight"], whole["model.embed_tokens.weight"][tokens])
    assert torch.equal(cut["model.embed_tokens.weight"], whole["model.embed_tokens.weight"])
    assert tokens.tolist() == sorted(set(tokens.tolist()))
    assert 2 in tokens  # the end of a turn can always be drafted
    assert json.loads((finished.out / "reduced" / "config.json").read_text())["draft_vocab_size"] == 12
    with pytest.raises(ConfigurationError, match="reduced head"):
        LLM(
            model=str(finished.out / "reduced"), skip_tokenizer_init=True
        )  # as a target; as a draft: test_draft_head.py


def test_a_finished_run_is_shown_again_and_nothing_else_is_kept(
    finished: Finished, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert {path.name for path in (finished.out / "distill-run").iterdir()} <= {
        "run.json", "recipe.json", "log.jsonl", "finished", "lock",
    }  # fmt: skip
    weights = (finished.out / "model.safetensors").read_bytes()
    assert paceline(monkeypatch, *finished.command) == 0
    shown = capsys.readouterr()
    assert "finished already" in shown.err
    assert "Tokens a target pass, greedy" in shown.out
    assert ("paceline serve" in shown.out) == (finished.report["best_k"] > 0)
    assert (finished.out / "model.safetensors").read_bytes() == weights


def test_other_options_are_another_run(
    finished: Finished, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert paceline(monkeypatch, *finished.command, "--loss", "tv", "--seed", "3") == 2
    shown = capsys.readouterr().err
    assert "begun with other options: loss (there None, now 'tv'); seed (there 1, now 3)" in shown


def test_ctrl_c_leaves_a_state_that_goes_on(target: Path, tmp_path: Path) -> None:
    out = tmp_path / "draft"
    command = ["distill", str(target), "--out", str(out), *SIZE, "--steps", "100000", "--checkpoint-every", "0"]
    process = subprocess.Popen([sys.executable, "-m", "paceline.cli", *command], stderr=subprocess.PIPE, text=True)
    for _ in range(1800):
        if (out / "distill-run" / "checkpoint.pt").exists():
            break
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, shown = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "The same command goes on" in shown
    assert "Traceback" not in shown
    assert "about" in shown  # the estimate of the time
    state = RunFolder(out).load()
    assert state is not None
    assert state["total_steps"] == 100000


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with (
        claim(tmp_path / "draft", {"seed": 1}, overwrite=False, resume=False),
        pytest.raises(ConfigurationError, match="another run writes there now"),
        claim(tmp_path / "draft", {"seed": 1}, overwrite=False, resume=False),
    ):
        pass


def test_a_broken_checkpoint_says_what_to_do(tmp_path: Path) -> None:
    with claim(tmp_path / "draft", {}, overwrite=False, resume=False) as folder:
        assert folder.load() is None
        (folder.state / "checkpoint.pt").write_bytes(b"PK half a file")
        with pytest.raises(ConfigurationError, match="Delete it"):
            folder.load()


def _folder_with(path: Path, name: str) -> Path:
    path.mkdir()
    (path / name).write_text("mine")
    return path


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--size", "smal"), "Did you mean 'small'?"),
        (("--hidden", "30", "--heads", "4"), "do not fit"),
        (("--layers", "0"), "--layers 0 must be at least 1"),
        (("--tokens", "5", "--minutes", "3"), "Give one of"),
        (("--tokens", "-5"), "must be above 0"),
        (("--loss", "kl"), "unknown loss 'kl'"),
        (("--optimizer", "sgd:1"), "NAME:RATE:TABLE_RATE"),
        (("--data-mix", "0.5"), "there is none"),
        (("--data", "missing.jsonl"), "missing.jsonl cannot be read"),
        (("--length", "5000"), "half of the target's positions"),
        (("--rows", "1"), "must be at least 4"),
        (("--device", "tpu"), "auto, cpu, cuda"),
        (("--draft-vocab", "many"), "a number of tokens, or auto"),
        (("--overwrite", "--resume"), "one of them"),
        (("--resume",), "holds no run"),
    ],
)
def test_mistakes_are_one_message_and_leave_no_folder(
    words: tuple[str, ...],
    message: str,
    target: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "draft"
    assert paceline(monkeypatch, "distill", str(target), "--out", str(out), *words) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert "Traceback" not in shown
    assert not out.exists()


def test_a_folder_with_other_files_is_refused_and_overwriting_spares_them(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = _folder_with(tmp_path / "notes", "diary.txt")
    command = ("distill", str(target), "--out", str(out), *SIZE)
    assert paceline(monkeypatch, *command) == 2
    assert "holds other files (diary.txt)" in capsys.readouterr().err
    (out / "model.safetensors").write_text("an old draft")
    monkeypatch.setattr("paceline.distill.job._Job.run", lambda job, folder, recipe: 1 / 0)  # far enough
    with pytest.raises(ZeroDivisionError):
        paceline(monkeypatch, *command, "--overwrite")
    assert (out / "diary.txt").read_text() == "mine"
    assert not (out / "model.safetensors").exists()


def test_the_targets_own_folder_and_a_full_disk_are_refused(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert paceline(monkeypatch, "distill", str(target), "--out", str(target), "--overwrite") == 2
    assert "is the target's own folder" in capsys.readouterr().err
    assert (target / "model.safetensors").exists()
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1 << 20))
    assert paceline(monkeypatch, "distill", str(target), "--out", str(tmp_path / "draft"), *SIZE) == 2
    assert "Make room" in capsys.readouterr().err


def test_a_target_without_a_chat_template_is_refused(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import shutil

    base = shutil.copytree(target, tmp_path / "base")
    (base / "chat_template.jinja").unlink()
    assert paceline(monkeypatch, "distill", str(base), "--out", str(tmp_path / "draft"), *SIZE) == 2
    assert "no chat template" in capsys.readouterr().err
