"""What the writer needs of the target's tokenizer: the chat format as token ids, and how text becomes tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.distill.prompts import ChatFormat
from paceline.errors import ConfigurationError

_DOCUMENT_STARTS = ("<|endoftext|>", "<|begin_of_text|>", "<s>", "<bos>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    format: ChatFormat
    encode: Callable[[str], Sequence[int]]
    document_start: int  # the token after which the target writes plain text
    special: tuple[int, ...]  # never part of a document


def language_of(tokenizer: Any, ends: Sequence[int]) -> Language:
    """From a Hugging Face tokenizer. `ends`: the target's end-of-sequence ids; the one that closes a turn is found.

    Raises ConfigurationError if the tokenizer has no chat template or none of `ends` closes its turns."""
    if not getattr(tokenizer, "chat_template", None):
        raise ConfigurationError(
            "The target's tokenizer has no chat template, and a draft is distilled from conversations: "
            "take the instruct version of the model."
        )
    formats = [ChatFormat.from_tokenizer(tokenizer, end) for end in ends if _closes_turns(tokenizer, end)]
    if not formats:
        raise ConfigurationError(
            f"None of the target's end-of-sequence tokens ({', '.join(map(str, ends)) or 'there are none'}) closes a "
            "turn in its chat template; set eos_token_id in its generation_config.json to the one that does."
        )
    known = tokenizer.get_vocab()
    starts = [known[name] for name in _DOCUMENT_STARTS if name in known]
    return Language(
        format=formats[0],
        encode=lambda text: tokenizer.encode(text, add_special_tokens=False),
        document_start=starts[0] if starts else formats[0].end,
        special=tuple(tokenizer.all_special_ids),
    )


def _closes_turns(tokenizer: Any, end: int) -> bool:
    """Does the template write the token after the assistant's words?"""
    messages = [{"role": "user", "content": "MARKA"}, {"role": "assistant", "content": "MARKB"}]
    text = tokenizer.apply_chat_template([*messages, messages[0]], tokenize=False)
    between = text.split("MARKB")[1].split("MARKA")[0]
    return tokenizer.decode([end]) in between
