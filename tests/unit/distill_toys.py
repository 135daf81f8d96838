"""A target small enough to distill in seconds: one layer, 24 tokens, sure of what it says."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from paceline.distill.language import Language
from paceline.distill.model import Llama, LlamaShape
from paceline.distill.prompts import ChatFormat
from paceline.distill.student import export

VOCAB = 24
TEMPLATE = (
    "{% for m in messages %}{{ 't1 t5 t6 ' if m.role == 'user' and loop.first else 't1 t5 ' if m.role == 'user' "
    "else 't1 t7 ' }}{{ m.content }} t2 {% endfor %}{% if add_generation_prompt %}{{ 't1 t7 ' }}{% endif %}"
)
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


def toy_directory(path: Path) -> Path:
    """The toy target as a Hugging Face directory, with words t0 to t23 and the chat format of `FORMAT`."""
    export(toy_target(), {"bos_token_id": 1, "eos_token_id": FORMAT.end}, path, dtype=torch.float32)
    backend = Backend(WordLevel({f"t{i}": i for i in range(VOCAB)}, unk_token="t0"))
    backend.pre_tokenizer = WhitespaceSplit()  # type: ignore[assignment]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="t2", unk_token="t0")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(path)
    return path


def traffic(path: Path) -> Path:
    """A user's JSONL: conversations, and texts."""
    lines = [
        {
            "messages": [
                {"role": "user", "content": f"t{3 + n % 20} t{3 + n % 7}"},
                {"role": "assistant", "content": "t9"},
            ]
        }
        for n in range(12)
    ]
    texts = [{"text": "t8 t9 t10 " * 40}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines + texts))
    return path
