"""`python -m paceline.distill TARGET --out DIR`: distill a draft for the target in a Hugging Face directory."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from paceline.distill.losses import LossTerm
from paceline.distill.model import LlamaShape, load_llama
from paceline.distill.prompts import ChatFormat
from paceline.distill.recipe import DistillRecipe, OptimizerChoice, TextRecipe
from paceline.distill.run import Distillation, json_lines
from paceline.distill.writer import Language


def language_of(tokenizer: Any, end: int) -> Language:
    """The writer's view of a Hugging Face tokenizer with a chat template."""
    known = tokenizer.get_vocab()
    starts = [known[name] for name in ("<|endoftext|>", "<|begin_of_text|>", "<s>") if name in known]
    return Language(
        format=ChatFormat.from_tokenizer(tokenizer, end),
        encode=lambda text: tokenizer.encode(text, add_special_tokens=False),
        document_start=starts[0] if starts else end,
        special=tuple(tokenizer.all_special_ids),
    )


def optimizer_choice(text: str) -> OptimizerChoice:
    """'muon:0.003:0.002': matrices' optimizer, its learning rate, the table's."""
    name, rate, table_rate = text.split(":")
    return OptimizerChoice(name, float(rate), float(table_rate))  # type: ignore[arg-type]


def loss_terms(text: str) -> tuple[LossTerm, ...]:
    """'forward_kl*0.25,total_variation@0.6'."""
    return tuple(LossTerm.parse(part) for part in text.split(","))


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="python -m paceline.distill", description=__doc__)
    options.add_argument("target", type=Path, help="Hugging Face directory of the target")
    options.add_argument("--out", type=Path, required=True, help="folder for the draft, its checkpoints and the log")
    options.add_argument("--seconds", type=float, default=DistillRecipe().seconds, help="of writing and learning")
    options.add_argument("--hidden", type=int, default=256)
    options.add_argument("--layers", type=int, default=3)
    options.add_argument("--heads", type=int, default=4)
    options.add_argument("--kv-heads", type=int, default=4)
    options.add_argument("--head-dim", type=int, default=64)
    options.add_argument("--intermediate", type=int, default=640)
    options.add_argument("--candidate", type=optimizer_choice, action="append", help="e.g. muon:0.003:0.003; repeat")
    options.add_argument("--candidate-seconds", type=float, default=DistillRecipe().candidate_seconds)
    options.add_argument("--loss", type=loss_terms, default=DistillRecipe().loss, help="e.g. forward_kl")
    options.add_argument("--final-loss", type=loss_terms, action="append", default=[], help="a branch; repeat")
    options.add_argument("--fork-at", type=float, default=DistillRecipe().fork_at)
    options.add_argument("--learning-share", type=float, default=DistillRecipe().learning_share)
    options.add_argument("--evaluate-every", type=float, default=DistillRecipe().evaluate_every)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--small", action="store_true", help="rows and buffers for a small machine")
    return options


SMALL_TEXT = TextRecipe(
    chat_rows=128, chat_length=256, document_rows=64, document_length=512, document_prompts=(224, 320),
    selected=192, chat_capacity=2048, document_capacity=512, fill=1, held_out=(32, 16),
)  # fmt: skip


def main() -> None:
    from transformers import AutoTokenizer

    options = parser().parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config = json.loads((options.target / "config.json").read_text())
    target = load_llama(
        options.target, dtype=torch.bfloat16 if device.type == "cuda" else torch.float32, device=device
    ).requires_grad_(False)
    language = language_of(AutoTokenizer.from_pretrained(options.target), config["eos_token_id"])
    shape = LlamaShape(
        vocab_size=target.shape.vocab_size,
        hidden_size=options.hidden,
        num_layers=options.layers,
        num_heads=options.heads,
        num_kv_heads=options.kv_heads,
        head_dim=options.head_dim,
        intermediate_size=options.intermediate,
        max_positions=target.shape.max_positions,
    )
    recipe = DistillRecipe(
        seconds=options.seconds,
        candidates=tuple(options.candidate or DistillRecipe().candidates),
        candidate_seconds=options.candidate_seconds,
        loss=options.loss,
        final_losses=tuple(options.final_loss),
        fork_at=options.fork_at,
        learning_share=options.learning_share,
        evaluate_every=options.evaluate_every,
        seed=options.seed,
    )
    if options.small:
        recipe = replace(recipe, text=SMALL_TEXT, chat_batch=16, head_chunk=1024)
    options.out.mkdir(parents=True, exist_ok=True)
    log = json_lines(options.out / "log.jsonl")
    log({"event": "recipe", "recipe": repr(recipe), "shape": repr(shape), "parameters": shape.num_parameters})
    Distillation(target, config, shape, language, recipe, options.out, clock=time.monotonic, log=log).run()


if __name__ == "__main__":
    main()
