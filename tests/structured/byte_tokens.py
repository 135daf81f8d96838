"""A byte-level tokenizer small enough to look at: every byte is a token, and so are some longer pieces of JSON."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from tokenizers import AddedToken, decoders, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from paceline.tokenizer import Tokenizer

PIECES = ['":', '", "', '{"', '"}', "}]", "[]", "ab", "abc", "12", "true", "null", "  ", "é"]
EOS = "<|end|>"


def _inner() -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: place for place, character in enumerate(alphabet)}
    merges: list[tuple[str, str]] = []
    for piece in PIECES:
        spelled = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(piece)[0][0]
        for end in range(2, len(spelled) + 1):
            if spelled[:end] not in vocabulary:
                merges.append((spelled[: end - 1], spelled[end - 1]))
                vocabulary[spelled[:end]] = len(vocabulary)
    backend = Backend(BPE(vocabulary, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)  # type: ignore[assignment]
    backend.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    backend.add_special_tokens([AddedToken(EOS, special=True), AddedToken("<|turn|>", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=EOS)


@lru_cache
def byte_tokenizer() -> Tokenizer:
    return Tokenizer(_inner())


def save(path: Path) -> None:
    _inner().save_pretrained(path)


def eos_id() -> int:
    token_id = byte_tokenizer().eos_token_id
    assert token_id is not None
    return token_id
