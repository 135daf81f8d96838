"""The distillation loop: write, learn, look; choose the optimizer first and the last loss by measurement."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from paceline.distill.evaluate import evaluate
from paceline.distill.losses import LossTerm
from paceline.distill.model import Llama, LlamaShape
from paceline.distill.recipe import DistillRecipe, OptimizerChoice
from paceline.distill.replay import Batch
from paceline.distill.student import draft_from_target, export
from paceline.distill.train import Trainer, learning_rate_factor
from paceline.distill.writer import Language, Writer

Clock = Callable[[], float]
Log = Callable[[dict[str, Any]], None]


class Distillation:
    """One run. `clock` gives seconds, `log` takes one event at a time, checkpoints go to `out`."""

    def __init__(
        self,
        target: Llama,
        target_config: dict[str, Any],
        shape: LlamaShape,
        language: Language,
        recipe: DistillRecipe,
        out: Path,
        *,
        clock: Clock,
        log: Log,
    ) -> None:
        self.target, self.target_config, self.shape, self.recipe = target, target_config, shape, recipe
        self.out, self.clock, self.log = out, clock, log
        self.writer = Writer(target, language, recipe.text, seed=recipe.seed)
        self.draws = torch.Generator(target.table.device).manual_seed(recipe.seed + 1)
        self.kinds = random.Random(recipe.seed)  # on the host: asking the device would wait for it
        self.held_out: dict[str, Batch] = {}
        self.began = clock()

    def run(self) -> Llama:
        """All of it; returns the best student, its weights rounded to BF16, and leaves it exported in `out`."""
        self.fill()
        choice = self.choose_optimizer()
        branches = self.learn(choice)
        return self.finish(branches)

    def note(self, event: str, **values: Any) -> None:
        self.log({"event": event, "seconds": round(self.clock() - self.began, 1)} | values)

    def fill(self) -> None:
        """The first rounds of text, and the held-out rows."""
        chats, papers = self.recipe.text.held_out
        self.writer.write("raw")
        for number in range(self.recipe.text.fill):
            held = self.writer.write("chat", hold_out=chats if number == 0 else 0)
            if held is not None:
                self.held_out["chat"] = held
            self.note("written", **self._written())
        held = self.writer.write("document", hold_out=papers)
        assert held is not None
        self.held_out["document"] = held
        self.note("written", **self._written())

    def choose_optimizer(self) -> OptimizerChoice:
        """A short run for each candidate; the lowest held-out forward KL wins."""
        candidates = self.recipe.candidates
        if len(candidates) == 1:
            return candidates[0]
        results = []
        for candidate in candidates:
            trainer = self._trainer(candidate)
            trainer.step(self._draw(), self.recipe.loss, 0.0)  # compile outside the measured time
            start = self.clock()
            self._train([(trainer, self.recipe.loss)], start, self.recipe.candidate_seconds, start + math.inf)
            figures = self._evaluate(trainer.student, rows=64)
            results.append(figures["chat"]["forward_kl"])
            self.note("candidate", choice=str(candidate), steps=trainer.steps, tokens=trainer.tokens, held_out=figures)
        return candidates[min(range(len(results)), key=results.__getitem__)]

    def learn(self, choice: OptimizerChoice) -> list[tuple[Trainer, tuple[LossTerm, ...]]]:
        """The main run: rounds of writing and learning, then learning alone; forks where the recipe says."""
        recipe = self.recipe
        self.note("chosen", choice=str(choice))
        branches = [(self._trainer(choice), recipe.loss)]
        start = last_look = self.clock()
        kinds = itertools.cycle(recipe.text.cycle)
        while (progress := (self.clock() - start) / recipe.seconds) < 1.0:
            forked = len(branches) > 1 or not recipe.final_losses
            if progress >= recipe.fork_at and not forked:
                self._export(branches[0][0].student, "before-fork")
                parent = branches[0][0]
                branches = [(parent, recipe.final_losses[0])]
                branches += [(parent.fork(), terms) for terms in recipe.final_losses[1:]]
                self.note("fork", losses=[str(terms) for _, terms in branches])
            before = self.clock()
            if progress < recipe.write_until:
                self.writer.write(next(kinds))
                self._wait()
                spent = self.clock() - before
                until = self.clock() + spent * recipe.learning_share / (1.0 - recipe.learning_share)
            else:
                until = self.clock() + recipe.evaluate_every / 4
            loss = self._train(branches, start, recipe.seconds, until)
            if self.clock() - last_look >= recipe.evaluate_every:
                last_look = self.clock()
                self._look(branches, loss, progress)
        return branches

    def finish(self, branches: list[tuple[Trainer, tuple[LossTerm, ...]]]) -> Llama:
        """Round to BF16, evaluate every branch on all held-out rows, export all and name the best."""
        results = []
        for number, (trainer, terms) in enumerate(branches):
            with torch.no_grad():
                for parameter in trainer.student.parameters():
                    parameter.copy_(parameter.to(torch.bfloat16))
            figures = self._evaluate(trainer.student, rows=None)
            results.append(figures["chat"]["tokens_per_pass"] + figures["document"]["tokens_per_pass"])
            self._export(trainer.student, f"branch{number}")
            facts = {"steps": trainer.steps, "tokens": trainer.tokens, "held_out": figures}
            self.note("branch", number=number, loss=str(terms), **facts, written=self._written())
        best = max(range(len(results)), key=results.__getitem__)
        self.note("best", number=best)
        torch.save(self.writer.answer_counts.cpu(), self.out / "answer_counts.pt")
        self._export(branches[best][0].student, "best")
        return branches[best][0].student

    def _trainer(self, choice: OptimizerChoice) -> Trainer:
        student = draft_from_target(self.target, self.shape, seed=self.recipe.seed)
        table = self.target.table.detach()
        recipe = self.recipe
        return Trainer(student, table, choice, head_chunk=recipe.head_chunk, clip=recipe.clip, compiled=table.is_cuda)

    def _draw(self) -> Batch:
        writer, recipe = self.writer, self.recipe
        if self.kinds.random() < recipe.document_share:
            text = recipe.text
            rows = max(1, recipe.chat_batch * text.chat_length // text.document_length)
            return writer.document_buffer.draw(rows, self.draws)
        return writer.chat_buffer.draw(recipe.chat_batch, self.draws)

    def _train(
        self, branches: list[tuple[Trainer, tuple[LossTerm, ...]]], start: float, seconds: float, until: float
    ) -> float:
        """Steps until `until` or the end of the schedule that began at `start`; the first branch's last loss."""
        loss = torch.tensor(math.nan)
        while (progress := (self.clock() - start) / seconds) < 1.0:
            factor = learning_rate_factor(progress, self.recipe.warmup)
            for _ in range(4):  # the clock is read, and the device waited for, once in a while only
                batch = self._draw()
                losses = [trainer.step(batch, terms, factor) for trainer, terms in branches]
                loss = losses[0]
            self._wait()
            if self.clock() >= until:
                break
        return loss.item()

    def _look(self, branches: list[tuple[Trainer, tuple[LossTerm, ...]]], loss: float, progress: float) -> None:
        for number, (trainer, _) in enumerate(branches):
            self.note(
                "progress", branch=number, progress=round(progress, 3), loss=round(loss, 4), steps=trainer.steps,
                tokens=trainer.tokens, held_out=self._evaluate(trainer.student, rows=96), written=self._written(),
            )  # fmt: skip
        self._export(branches[0][0].student, "latest")

    def _evaluate(self, student: Llama, rows: int | None) -> dict[str, dict[str, float]]:
        figures = {}
        for name, batch in self.held_out.items():
            part = Batch(*(getattr(batch, field)[:rows] for field in Batch.__slots__))
            figures[name] = {k: round(v, 4) for k, v in evaluate(student, self.target.table, part).items()}
        return figures

    def _written(self) -> dict[str, Any]:
        return dict(self.writer.tokens) | {"selected": self.writer.selected}

    def _export(self, student: Llama, name: str) -> None:
        export(student, self.target_config, self.out / name)

    def _wait(self) -> None:
        if self.target.table.is_cuda:
            torch.cuda.synchronize()


def json_lines(path: Path) -> Log:
    """A log that appends to a file and prints."""

    def write(event: dict[str, Any]) -> None:
        line = json.dumps(event)
        with path.open("a") as file:
            file.write(line + "\n")
        print(line, flush=True)

    return write
