"""One student, its optimizers and one step."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from paceline.distill.losses import LossFunction, LossTerm, head_loss, mixed_divergence
from paceline.distill.model import Llama
from paceline.distill.recipe import OptimizerChoice
from paceline.distill.replay import Batch


def learning_rate_factor(progress: float, warmup: float) -> float:
    """Linear to 1 at `warmup`, then half a cosine to 0 at 1."""
    if progress < warmup:
        return (progress + 1e-3) / (warmup + 1e-3)
    return 0.5 * (1.0 + math.cos(math.pi * min(1.0, (progress - warmup) / (1.0 - warmup))))


class Trainer:
    """Learns from batches; holds what a checkpoint holds."""

    def __init__(
        self,
        student: Llama,
        target_table: Tensor,  # [V, H], in the dtype of the teacher's hidden states
        choice: OptimizerChoice,
        *,
        head_chunk: int = 8192,
        clip: float = 1.0,
        compiled: bool = False,
    ) -> None:
        self.student, self.target_table, self.choice = student, target_table, choice
        self.head_chunk, self.clip, self.compiled = head_chunk, clip, compiled
        self.steps = self.tokens = 0
        matrices = [p for p in student.layers.parameters() if p.dim() == 2]
        vectors = [p for p in student.parameters() if p.dim() == 1]
        fused = target_table.is_cuda
        slow, fast = choice.learning_rate, choice.table_learning_rate
        groups = [{"params": [student.table], "lr": fast}, {"params": vectors, "lr": slow}]
        self.optimizers: list[torch.optim.Optimizer] = []
        if choice.matrices == "muon":
            muon = torch.optim.Muon(matrices, lr=slow, weight_decay=choice.weight_decay, adjust_lr_fn="match_rms_adamw")
            self.optimizers.append(muon)
        else:
            groups.append({"params": matrices, "lr": slow, "weight_decay": choice.weight_decay})
        self.optimizers.append(torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-10, weight_decay=0.0, fused=fused))
        self._peaks = [[group["lr"] for group in optimizer.param_groups] for optimizer in self.optimizers]
        self._loss: LossFunction = mixed_divergence
        if compiled:
            self._loss = torch.compile(mixed_divergence, dynamic=False)
            for layer in student.layers:
                layer.compile(dynamic=False)

    def step(self, batch: Batch, terms: tuple[LossTerm, ...], factor: float) -> Tensor:
        """One step at `factor` times the peak learning rates; returns the loss, still on the device."""
        dtype = batch.hidden.dtype
        with torch.autocast(batch.hidden.device.type, dtype=dtype, enabled=dtype != torch.float32):
            hidden = self.student(batch.tokens)
        index = batch.positions.unsqueeze(-1).expand(-1, -1, hidden.shape[-1])
        loss = head_loss(
            hidden.gather(1, index).flatten(0, 1).to(dtype),
            self.student.table,
            batch.hidden.flatten(0, 1),
            self.target_table,
            terms,
            chunk=self.head_chunk,
            function=self._loss,
        )
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.student.parameters(), self.clip)
        for optimizer, peaks in zip(self.optimizers, self._peaks, strict=True):
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = peak * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        self.tokens += batch.num_selected
        return loss.detach()

    def fork(self) -> Trainer:
        """The same state in its own memory: to try another loss from here."""
        student = Llama(self.student.shape).to(self.student.table.device)
        options = {"head_chunk": self.head_chunk, "clip": self.clip, "compiled": self.compiled}
        other = Trainer(student, self.target_table, self.choice, **options)  # type: ignore[arg-type]
        other.load_state_dict(self.state_dict())
        return other

    def state_dict(self) -> dict[str, object]:
        """A checkpoint that `load_state_dict` resumes from."""
        return {
            "student": self.student.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "steps": self.steps,
            "tokens": self.tokens,
        }

    def load_state_dict(self, state: dict[str, object]) -> None:
        self.student.load_state_dict(state["student"])  # type: ignore[arg-type]
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):  # type: ignore[call-overload]
            optimizer.load_state_dict(copy.deepcopy(saved))  # it would share the moments otherwise
        self.steps, self.tokens = state["steps"], state["tokens"]  # type: ignore[assignment]
