"""A target small enough to distill in seconds: one layer, 24 tokens, sure of what it says."""

from __future__ import annotations

import torch

from paceline.distill.model import Llama, LlamaShape
from paceline.distill.prompts import ChatFormat
from paceline.distill.writer import Language

VOCAB = 24
FORMAT = ChatFormat(start=(1, 5, 6), end=2, to_assistant=(1, 7), to_user=(1, 5))
SHAPE = LlamaShape(
    vocab_size=VOCAB, hidden_size=24, num_layers=1, num_heads=3, num_kv_heads=1, head_dim=8, intermediate_size=48
)
DRAFT_SHAPE = LlamaShape(
    vocab_size=VOCAB, hidden_size=16, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=8, intermediate_size=32
)
LANGUAGE = Language(
    format=FORMAT, encode=lambda text: [3 + ord(c) % 20 for c in text[:3]], document_start=0, special=(0, 1, 2)
)


def toy_target(seed: int = 0) -> Llama:
    generator = torch.Generator().manual_seed(seed)
    target = Llama(SHAPE).requires_grad_(False)
    for parameter in target.parameters():
        if parameter.dim() == 2:
            parameter.normal_(0.0, 1.5 * parameter.shape[1] ** -0.5, generator=generator)
    target.layers[0].self_attn.o_proj.weight.mul_(0.3)
    target.layers[0].mlp.down_proj.weight.mul_(2.0)  # what follows a token is not the token itself
    target.norm.weight.fill_(2.0)
    target.table[FORMAT.end] *= 1.5  # turns are short
    return target
