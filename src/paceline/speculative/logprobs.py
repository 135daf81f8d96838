"""Log-probabilities of tokens, from the target's raw logits: before temperature and restrictions."""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.plan import TokenLogprobs


def token_logprobs(logits: Tensor, token_ids: list[int], num_top: int | None) -> list[TokenLogprobs] | None:
    """One entry a token; logits [P, V] with P >= len(token_ids). None if none were asked for.

    num_top alternatives each; -1: the whole vocabulary.
    """
    if num_top is None:
        return None
    logprobs = torch.log_softmax(logits[: len(token_ids)].to(torch.float32), dim=-1)
    chosen = logprobs.gather(1, torch.tensor(token_ids, device=logits.device)[:, None])
    ranks = (logprobs > chosen).sum(-1) + 1
    top = logprobs.topk(logprobs.shape[-1] if num_top == -1 else min(num_top, logprobs.shape[-1]), dim=-1)
    columns = (chosen.squeeze(1).tolist(), ranks.tolist(), top.indices.tolist(), top.values.tolist())
    return [TokenLogprobs(*entry) for entry in zip(*columns, strict=True)]
