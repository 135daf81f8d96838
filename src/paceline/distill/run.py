"""The distillation loop: write, learn, look; choose the optimizer first and the last loss by measurement.

A run is a function of its recipe and its target: what a step draws follows from (seed, step), what a round holds from
(seed, round), and when a round is written from the step. So a checkpoint is the trainers and the number of steps, and
a run that goes on from one ends where an uninterrupted run ends (bit for bit where the teacher reads text bit for bit
as it did before: on a CPU with the engine's decoder, not on a GPU with the batched one, which keeps its own hidden
states while it writes).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from paceline.distill.evaluate import evaluate
from paceline.distill.interrupt import Interrupts
from paceline.distill.losses import LossTerm
from paceline.distill.model import Llama, LlamaShape
from paceline.distill.recipe import DistillRecipe, OptimizerChoice
from paceline.distill.replay import Batch
from paceline.distill.student import draft_from_target
from paceline.distill.teacher import Teacher
from paceline.distill.train import Trainer, learning_rate_factor
from paceline.distill.writer import Writer
from paceline.errors import ConfigurationError

Clock = Callable[[], float]
Figures = dict[str, dict[str, float]]  # by kind of held-out text
_READ_CLOCK_EVERY = 4  # steps: the device is waited for that often
_QUICK_LOOK_ROWS = 96


class Watcher(Protocol):
    """Whoever shows or keeps what happens."""

    def note(self, event: str, **values: Any) -> None:
        """Something worth a line in the log."""

    def advance(self, phase: str, done: int, total: int, **values: Any) -> None:
        """`phase` has come so far."""


class Checkpoints(Protocol):
    def load(self) -> dict[str, Any] | None: ...

    def save(self, state: dict[str, Any]) -> None: ...


@dataclass(slots=True)
class Branch:
    trainer: Trainer
    terms: tuple[LossTerm, ...]

    @property
    def loss_name(self) -> str:
        return " + ".join(map(str, self.terms))


@dataclass(frozen=True, slots=True)
class Outcome:
    """The best student, its weights rounded to BF16, and what was measured on the way."""

    student: Llama
    loss: str
    choice: OptimizerChoice
    steps: int
    tokens: int
    before: Figures
    after: Figures


class Distillation:
    """One run. `clock` gives seconds and decides only when checkpoints are written and what `minutes` buys."""

    def __init__(
        self,
        teacher: Teacher,
        writer: Writer,
        shape: LlamaShape,
        recipe: DistillRecipe,
        checkpoints: Checkpoints,
        watcher: Watcher,
        *,
        clock: Clock,
        checkpoint_every: float = 60.0,
        interrupts: Interrupts | None = None,
        check_steps: Callable[[int], None] = lambda steps: None,
    ) -> None:
        """`check_steps` may refuse the number of steps, which `minutes` decides only when the run has begun."""
        self.teacher, self.writer, self.shape, self.recipe = teacher, writer, shape, recipe
        self.checkpoints, self.watcher, self.clock = checkpoints, watcher, clock
        self.checkpoint_every, self.check_steps = checkpoint_every, check_steps
        self.interrupts = interrupts or Interrupts()
        self.draws = torch.Generator(teacher.device)
        self.total_steps = 0
        self.before: Figures = {}
        self.choice = recipe.candidates[0]

    def run(self) -> Outcome:
        """All of it, from wherever the last checkpoint is."""
        state = self.checkpoints.load()
        if state is None:
            branches, step = self._start(), 0
        else:
            branches, step = self._restore(state)
        step = self._learn(branches, step)
        return self._finish(branches)

    # The beginning

    def _start(self) -> list[Branch]:
        kinds = self.recipe.text.kinds
        for number in range(len(kinds)):
            self.watcher.advance("writing", number, len(kinds))
            self.writer.next_round()
            seconds = self.writer.store.seconds(number)
            self.watcher.note("written", round=number, seconds=round(seconds, 2), tokens=self.writer.tokens)
        if not any(batch.answers.any() for batch in self.writer.held_out.values()):
            raise ConfigurationError(
                "The target did not come to answer in any of the held-out rows, so there is nothing to measure a draft "
                "on: give more --length or more --rows."
            )
        self.total_steps = self._budget(seconds)
        self.choice = self._choose_optimizer()
        branch = Branch(self._trainer(self.choice), self.recipe.loss)
        self.before = self._evaluate(branch.trainer.student, _QUICK_LOOK_ROWS)
        self.watcher.note("look", step=0, loss=None, held_out=self.before)
        self._save([branch], 0)
        return [branch]

    def _budget(self, seconds_per_round: float) -> int:
        """Steps of the whole run, and an estimate of its time; `seconds_per_round` as the last round took."""
        recipe = self.recipe
        trial = self._trainer(self.choice)
        trial.step(self._draw(0), recipe.loss, 0.0)  # compiles, and pays for what only a first step pays
        self._wait()
        began = self.clock()
        for _ in range(2):
            trial.step(self._draw(0), recipe.loss, 0.0)
        self._wait()
        seconds_per_step = max((self.clock() - began) / 2, 1e-6)
        if recipe.tokens is not None:
            steps = recipe.steps_for(recipe.tokens)
        else:
            assert recipe.minutes is not None
            per_step = seconds_per_step * recipe.branch_factor
            per_step += seconds_per_round * recipe.rounds_for(10_000) / 10_000
            steps = max(1, int(60 * recipe.minutes / per_step))
        self.check_steps(steps)
        rounds = recipe.rounds_for(steps)
        trials = len(recipe.candidates) * recipe.candidate_steps if len(recipe.candidates) > 1 else 0
        estimate = (steps * recipe.branch_factor + trials) * seconds_per_step
        estimate += (rounds - len(recipe.text.kinds)) * seconds_per_round
        self.watcher.note(
            "estimate", steps=steps, rounds=rounds, positions=int(steps * recipe.tokens_per_step),
            seconds=round(estimate, 1), seconds_per_step=round(seconds_per_step, 4),
            seconds_per_round=round(seconds_per_round, 2),
        )  # fmt: skip
        return steps

    def _choose_optimizer(self) -> OptimizerChoice:
        """A short run for each candidate; the lowest held-out forward KL wins."""
        candidates = self.recipe.candidates
        if len(candidates) == 1:
            return candidates[0]
        results = []
        for candidate in candidates:
            branch = Branch(self._trainer(candidate), self.recipe.loss)
            for step in range(self.recipe.candidate_steps):
                factor = learning_rate_factor(step / self.recipe.candidate_steps, self.recipe.warmup)
                branch.trainer.step(self._draw(step), branch.terms, factor)
                if step % _READ_CLOCK_EVERY == 0:
                    self.watcher.advance(f"trying {candidate.matrices}", step, self.recipe.candidate_steps)
            figures = self._evaluate(branch.trainer.student, _QUICK_LOOK_ROWS)
            results.append(sum(kind["forward_kl"] for kind in figures.values()))
            self.watcher.note("candidate", choice=str(candidate), held_out=figures)
        return candidates[min(range(len(results)), key=results.__getitem__)]

    # The middle

    def _learn(self, branches: list[Branch], step: int) -> int:
        """Steps from `step` to the end, rounds of text where they are due; forks where the recipe says."""
        recipe, total = self.recipe, self.total_steps
        fork = int(recipe.fork_at * total) if recipe.final_losses else -1
        look_every = max(1, total // recipe.looks)
        loss, saved = torch.tensor(math.nan), self.clock()
        try:
            while step < total:
                if step == fork:
                    self._fork(branches)
                while self.writer.rounds < recipe.rounds_due(step, total):
                    self._write_round(step)
                with self.interrupts.deferred():
                    batch = self._draw(step)
                    factor = learning_rate_factor(step / total, recipe.warmup)
                    losses = [branch.trainer.step(batch, branch.terms, factor) for branch in branches]
                    loss = losses[0]
                    step += 1
                if step % _READ_CLOCK_EVERY == 0 or step == total:
                    self._wait()
                    self.watcher.advance("learning", step, total, loss=loss.item())
                    if self.clock() - saved >= self.checkpoint_every:
                        self._save(branches, step)
                        saved = self.clock()
                if step % look_every == 0:
                    self._look(branches, step, loss.item())
        except KeyboardInterrupt:
            self._save(branches, step)
            raise
        self._save(branches, step)
        return step

    def _write_round(self, step: int) -> None:
        self.watcher.advance("writing", step, self.total_steps)
        self.writer.next_round()
        self._wait()

    def _fork(self, branches: list[Branch]) -> None:
        """The first final loss goes on with the trainer that is there, the others with copies of it."""
        if len(branches) > 1:
            return  # a checkpoint of this very step
        parent = branches[0]
        branches[1:] = [Branch(parent.trainer.fork(), terms) for terms in self.recipe.final_losses[1:]]
        parent.terms = self.recipe.final_losses[0]
        self.watcher.note("fork", losses=[branch.loss_name for branch in branches])

    def _look(self, branches: list[Branch], step: int, loss: float) -> None:
        for number, branch in enumerate(branches):
            figures = self._evaluate(branch.trainer.student, _QUICK_LOOK_ROWS)
            self.watcher.note(
                "look", step=step, branch=number, loss=round(loss, 4), tokens=branch.trainer.tokens, held_out=figures
            )

    def _draw(self, step: int) -> Batch:
        """The batch of a step: a function of the seed, the step and what the buffers hold."""
        recipe, buffers = self.recipe, self.writer.buffers
        mix = recipe.text.data_mix
        shares = {"data": mix, "document": (1 - mix) * recipe.document_share}
        shares["chat"] = 1 - sum(shares.values())
        kinds = [kind for kind, share in shares.items() if share > 0 and buffers[kind].size]
        weights = np.array([shares[kind] for kind in kinds])
        random = np.random.default_rng((recipe.seed, step))
        kind = kinds[int(random.choice(len(kinds), p=weights / weights.sum()))]
        self.draws.manual_seed(int(random.integers(2**62)))
        return buffers[kind].draw(recipe.batch if kind == "chat" else recipe.long_batch, self.draws)

    # The end

    def _finish(self, branches: list[Branch]) -> Outcome:
        """Round to BF16, evaluate every branch on all held-out rows; the most greedy tokens a pass win."""
        results = []
        for number, branch in enumerate(branches):
            student = branch.trainer.student
            with torch.no_grad():
                for parameter in student.parameters():
                    parameter.copy_(parameter.to(torch.bfloat16))
            figures = self._evaluate(student, rows=None)
            results.append(figures)
            self.watcher.note("branch", number=number, loss=branch.loss_name, held_out=figures)
        score = [sum(kind["tokens_per_pass"] for kind in figures.values()) for figures in results]
        best = max(range(len(score)), key=score.__getitem__)
        trainer = branches[best].trainer
        return Outcome(
            trainer.student, branches[best].loss_name, self.choice, trainer.steps, trainer.tokens,
            self.before, results[best],
        )  # fmt: skip

    # State

    def _save(self, branches: list[Branch], step: int) -> None:
        self._wait()
        with self.interrupts.deferred():
            self.checkpoints.save(
                {
                    "step": step,
                    "total_steps": self.total_steps,
                    "choice": self.recipe.candidates.index(self.choice),
                    "before": self.before,
                    "branches": [branch.trainer.state_dict() for branch in branches],
                }
            )

    def _restore(self, state: dict[str, Any]) -> tuple[list[Branch], int]:
        """The trainers of a checkpoint, and the buffers as they were at its step."""
        recipe, step = self.recipe, int(state["step"])
        self.total_steps, self.before = int(state["total_steps"]), state["before"]
        self.choice = recipe.candidates[state["choice"]]
        self.watcher.note("resumed", step=step, steps=self.total_steps)
        last_step = max(0, step - 1)
        self.writer.catch_up(recipe.rounds_due(last_step, self.total_steps))
        forked = bool(recipe.final_losses) and step > int(recipe.fork_at * self.total_steps)
        terms = recipe.final_losses if forked or len(state["branches"]) > 1 else (recipe.loss,)
        branches = [Branch(self._trainer(self.choice), loss) for loss in terms]
        for branch, saved in zip(branches, state["branches"], strict=True):
            branch.trainer.load_state_dict(saved)
        return branches, step

    def _trainer(self, choice: OptimizerChoice) -> Trainer:
        student = draft_from_target(self.teacher.head, self.shape, seed=self.recipe.seed)
        recipe, head = self.recipe, self.teacher.head
        return Trainer(student, head, choice, head_chunk=recipe.head_chunk, clip=recipe.clip, compiled=head.is_cuda)

    def _evaluate(self, student: Llama, rows: int | None) -> Figures:
        figures = {}
        for name, batch in self.writer.held_out.items():
            if not batch.answers.any():
                continue  # nothing to measure on
            part = Batch(*(getattr(batch, field)[:rows] for field in Batch.__slots__))
            figures[name] = {k: round(v, 4) for k, v in evaluate(student, self.teacher.head, part).items()}
        return figures

    def _wait(self) -> None:
        if self.teacher.head.is_cuda:
            torch.cuda.synchronize()
