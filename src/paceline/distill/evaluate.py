"""Held-out figures while training: divergences, agreement, and greedy tokens a pass, on generated text."""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.distill.acceptance import expected_passes
from paceline.distill.model import Llama
from paceline.distill.replay import Batch


def runs(flags: list[bool]) -> list[tuple[int, int]]:
    """The maximal runs of True as (start, end)."""
    edges = [i for i in range(len(flags) + 1) if (i < len(flags) and flags[i]) != (i > 0 and flags[i - 1])]
    return list(zip(edges[::2], edges[1::2], strict=True))


@torch.no_grad()
def evaluate(
    student: Llama,
    target_table: Tensor,
    batch: Batch,
    *,
    num_speculative_tokens: int = 5,
    logits_at_once: int = 1 << 26,
) -> dict[str, float]:
    """Over answer positions of a batch whose every position is selected. Temperature 0 rows give the greedy figures."""
    sums = dict.fromkeys(("positions", "forward_kl", "total_variation", "agreement", "accepted_at_0.7"), 0.0)
    greedy_tokens = greedy_passes = 0.0
    dtype = batch.hidden.dtype
    rows_at_once = max(1, logits_at_once // (batch.positions.shape[1] * len(target_table)))
    for start in range(0, len(batch.tokens), rows_at_once):
        rows = slice(start, start + rows_at_once)
        eager = torch.compiler.set_stance("force_eager")  # other shapes than in training: not worth compiling
        with eager, torch.autocast(batch.hidden.device.type, dtype=dtype, enabled=dtype != torch.float32):
            hidden = student(batch.tokens[rows])
        width = hidden.shape[-1]
        hidden = hidden.gather(1, batch.positions[rows].unsqueeze(-1).expand(-1, -1, width))
        answers = batch.answers[rows]
        draft_logits = hidden[answers].float() @ student.table.float().T
        target_logits = batch.hidden[rows][answers].float() @ target_table.float().T
        log_q, log_p = draft_logits.log_softmax(-1), target_logits.log_softmax(-1)
        agree = draft_logits.argmax(-1) == target_logits.argmax(-1)
        sums["positions"] += len(agree)
        sums["forward_kl"] += (log_p.exp() * (log_p - log_q)).sum().item()
        sums["total_variation"] += (log_p.exp() - log_q.exp()).abs().sum().item() / 2
        sums["agreement"] += agree.sum().item()
        cold = torch.minimum((draft_logits / 0.7).softmax(-1), (target_logits / 0.7).softmax(-1))
        sums["accepted_at_0.7"] += cold.sum().item()
        kept = torch.zeros(answers.shape, device=answers.device)
        kept[answers] = agree.float()
        for row in range(len(answers)):
            if batch.temperature[start + row] == 0:
                for first, end in runs(answers[row].tolist()):
                    greedy_tokens += end - first
                    greedy_passes += expected_passes(kept[row, first:end].tolist(), num_speculative_tokens)
    count = sums.pop("positions")
    figures = {name: value / max(count, 1.0) for name, value in sums.items()}
    return figures | {"tokens_per_pass": greedy_tokens / greedy_passes if greedy_passes else 1.0}
