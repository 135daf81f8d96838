"""A whole distillation of a tiny target on a CPU: the loss falls, agreement rises, the draft is exported."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from distill_toys import DRAFT_SHAPE, LANGUAGE, toy_target

from paceline.distill.__main__ import language_of, parser
from paceline.distill.losses import LossTerm
from paceline.distill.model import LlamaShape, load_llama
from paceline.distill.recipe import DistillRecipe, OptimizerChoice, TextRecipe
from paceline.distill.replay import Batch
from paceline.distill.run import Distillation
from paceline.distill.student import draft_from_target, principal_axes
from paceline.distill.train import Trainer, learning_rate_factor
from paceline.errors import UnsupportedModelError

TEXT = TextRecipe(
    chat_rows=64, chat_length=32, document_rows=32, document_length=64, document_prompts=(24, 40), selected=24,
    chat_capacity=256, document_capacity=64, fill=2, held_out=(16, 8), greedy_share=0.5,
)  # fmt: skip
RECIPE = DistillRecipe(
    text=TEXT,
    seconds=80,  # of a clock that advances by one at each look
    chat_batch=32,
    candidates=(OptimizerChoice("adamw", 1e-4, 1e-4), OptimizerChoice("muon", 2e-2, 2e-2)),
    candidate_seconds=6,
    final_losses=((LossTerm("forward_kl"),), (LossTerm("forward_kl", 0.25), LossTerm("total_variation", 1.0, 0.6))),
    evaluate_every=15,
    head_chunk=500,
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], Path]:
    out = tmp_path_factory.mktemp("draft")
    events: list[dict[str, Any]] = []
    ticks = itertools.count()
    special = {"bos_token_id": 1, "eos_token_id": 2}
    Distillation(
        toy_target(), special, DRAFT_SHAPE, LANGUAGE, RECIPE, out, clock=lambda: float(next(ticks)), log=events.append
    ).run()
    return events, out


def test_loss_falls_and_agreement_rises(finished: tuple[list[dict[str, Any]], Path]) -> None:
    events, _ = finished
    candidates = [e for e in events if e["event"] == "candidate"]
    branches = [e for e in events if e["event"] == "branch"]
    before, after = candidates[0]["held_out"]["chat"], branches[0]["held_out"]["chat"]
    assert after["forward_kl"] < 0.6 * before["forward_kl"]
    assert after["agreement"] > before["agreement"] + 0.1
    assert after["tokens_per_pass"] > before["tokens_per_pass"]


def test_the_better_candidate_is_chosen_and_both_branches_are_reported(
    finished: tuple[list[dict[str, Any]], Path],
) -> None:
    events, out = finished
    assert "muon" in next(e for e in events if e["event"] == "chosen")["choice"]
    assert len([e for e in events if e["event"] == "branch"]) == 2
    assert {path.name for path in out.iterdir()} >= {"best", "branch0", "branch1", "answer_counts.pt"}


def test_the_export_is_a_plain_llama_that_loads_and_that_transformers_agrees_with(
    finished: tuple[list[dict[str, Any]], Path],
) -> None:
    from transformers import AutoModelForCausalLM

    _, out = finished
    ours = load_llama(out / "best", dtype=torch.float32, device=torch.device("cpu"))
    theirs = AutoModelForCausalLM.from_pretrained(out / "best", dtype=torch.float32)
    ids = torch.arange(20).unsqueeze(0)
    with torch.no_grad():
        torch.testing.assert_close(ours(ids) @ ours.table.T, theirs(ids).logits, atol=1e-4, rtol=1e-4)


def test_a_checkpoint_resumes_exactly() -> None:
    target = toy_target()
    generator = torch.Generator().manual_seed(0)
    batch = Batch(
        torch.randint(24, (4, 12), generator=generator),
        torch.arange(10).expand(4, -1),
        torch.randn(4, 10, 24, generator=generator),
        torch.ones(4, 10, dtype=torch.bool),
        torch.zeros(4),
    )
    terms = (LossTerm("forward_kl"),)
    first = Trainer(draft_from_target(target, DRAFT_SHAPE, seed=1), target.table, OptimizerChoice())
    first.step(batch, terms, 1.0)
    second = Trainer(draft_from_target(target, DRAFT_SHAPE, seed=2), target.table, OptimizerChoice())
    second.load_state_dict(first.state_dict())
    forked = first.fork()
    losses = [[t.step(batch, terms, 0.5).item() for _ in range(3)] for t in (first, second, forked)]
    assert losses[0] == losses[1] == losses[2]
    assert losses[0][-1] < losses[0][0]
    assert second.steps == 4


def test_principal_axes_keep_the_inner_products_of_a_narrow_table() -> None:
    torch.manual_seed(0)
    table = torch.randn(40, 6) @ torch.randn(6, 24)  # of rank 6
    reduced = principal_axes(table, 6)
    products, kept = table @ table.T, reduced @ reduced.T
    torch.testing.assert_close(kept / kept.norm(), products / products.norm(), atol=1e-4, rtol=1e-3)


def test_schedule_warms_up_and_ends_at_zero() -> None:
    factors = [learning_rate_factor(i / 100, 0.05) for i in range(101)]
    assert factors[0] < 0.05
    assert max(factors) == pytest.approx(1.0)
    assert factors[-1] == pytest.approx(0.0, abs=1e-9)


def test_other_architectures_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="plain Llama"):
        LlamaShape.from_config({"model_type": "qwen3"})


def test_the_language_is_read_from_the_chat_template() -> None:
    class Tokenizer:
        all_special_ids = (0, 1, 2)

        def get_vocab(self) -> dict[str, int]:
            return {"<|endoftext|>": 0}

        def decode(self, ids: list[int]) -> str:
            return {2: "|"}[ids[0]]

        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            return [ord(c) for c in text]

        def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> str:
            return "".join(f"<{m['role']}>{m['content']}|\n" for m in messages) + "<assistant>"

    language = language_of(Tokenizer(), end=2)
    text = ["".join(map(chr, part)) for part in (language.format.start, language.format.to_assistant)]
    assert text == ["<user>", "\n<assistant>"]
    assert "".join(map(chr, language.format.to_user)) == "\n<user>"
    assert language.document_start == 0


def test_the_shipped_drafts_configuration_is_what_export_writes() -> None:
    import paceline.distill.student as student

    shipped = Path(student.__file__).parents[1] / "pairs" / "smollm2-135m-instruct-draft"
    config = json.loads((shipped / "config.json").read_text())
    assert student.hugging_face_config(LlamaShape.from_config(config), config) == config
    assert sum(file.stat().st_size for file in shipped.iterdir()) < 30_000_000


def test_options_are_read() -> None:
    options = parser().parse_args(
        ["T", "--out", "D", "--candidate", "adamw:0.001:0.002", "--final-loss", "forward_kl*0.25,total_variation@0.6"]
    )
    assert options.candidate == [OptimizerChoice("adamw", 0.001, 0.002)]
    assert options.final_loss == [(LossTerm("forward_kl", 0.25), LossTerm("total_variation", 1.0, 0.6))]
