"""The tokenizer of a model directory: text to token ids and back, chat messages to a prompt.

A thin wrapper over transformers' AutoTokenizer that fixes one behaviour for all versions and turns a caller's
mistakes into InvalidRequestError. transformers is imported when the first tokenizer is loaded, not before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from paceline.errors import ConfigurationError, InvalidRequestError

Message = Mapping[str, Any]  # {"role": ..., "content": ...} as in the OpenAI API


def has_tokenizer(path: str | Path) -> bool:
    """Does a model directory have tokenizer files of its own? A draft may do without."""
    return any((Path(path) / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json"))


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Load the tokenizer files of a local model directory; nothing is fetched."""
    from transformers import AutoTokenizer

    directory = Path(path)
    if not has_tokenizer(directory):
        raise ConfigurationError(f"'{directory}' holds no tokenizer.json: copy the model's tokenizer files there.")
    try:
        return Tokenizer(AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False))
    except Exception as error:  # a broken file raises whatever its parser stumbles over
        raise ConfigurationError(f"The tokenizer in '{directory}' cannot be loaded: {error}") from error


class Tokenizer:
    """`inner` is a transformers tokenizer; use `load_tokenizer` to make one from a directory."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._decode_fast = _plain_decoder(inner)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(self._inner.encode(text, add_special_tokens=add_special_tokens))

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        if self._decode_fast is not None:
            return self._decode_fast(ids, skip_special_tokens=skip_special_tokens)
        text = self._inner.decode(
            list(ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
        return str(text)

    def apply_chat_template(
        self, messages: Sequence[Message], add_generation_prompt: bool = True, **kwargs: Any
    ) -> list[int]:
        """The prompt's token ids. `kwargs` go to the template (tools, continue_final_message, enable_thinking…)."""
        from jinja2 import TemplateError

        checked = [_checked(index, message) for index, message in enumerate(_non_empty(messages))]
        if not self._inner.chat_template:
            raise InvalidRequestError(
                "This model has no chat template: send a plain prompt instead of messages, or serve an instruct model.",
                param="messages",
                code="no_chat_template",
            )
        self._refuse_unread(kwargs)
        try:
            rendered = self._inner.apply_chat_template(
                checked, add_generation_prompt=add_generation_prompt, tokenize=False, **kwargs
            )
        except (TemplateError, TypeError, KeyError, ValueError) as error:
            raise _bad(f"The model's chat template refuses these messages: {error}") from error
        try:
            rendered.encode()
        except UnicodeEncodeError:
            raise _bad("These messages are not valid Unicode: they hold a lone surrogate.") from None
        # The template writes the special tokens itself, BOS included.
        return self.encode(rendered, add_special_tokens=False)

    def _refuse_unread(self, kwargs: Mapping[str, Any]) -> None:
        """A variable that the template never reads would be ignored without a word."""
        template = str(self._inner.chat_template)
        for name in kwargs:
            if name != "continue_final_message" and not re.search(rf"\b{re.escape(name)}\b", template):
                message = f"This model's chat template does not read '{name}'; leave it out."
                raise InvalidRequestError(message, param=f"chat_template_kwargs.{name}")

    def token_strings(self, ids: Sequence[int]) -> list[str]:
        """Each token as the vocabulary spells it (byte-level BPE: "Ġworld"); empty for an id without a token."""
        return [token or "" for token in self._inner.convert_ids_to_tokens(list(ids))]

    @property
    def chat_template(self) -> str:
        """The text of its template, or of all of them; empty without one."""
        return str(self._inner.chat_template or "")

    @property
    def has_chat_template(self) -> bool:
        return bool(self._inner.chat_template)

    @property
    def eos_token_id(self) -> int | None:
        token_id: int | None = self._inner.eos_token_id
        return token_id

    @cached_property
    def vocab_size(self) -> int:
        """Token ids that stand for text: added tokens included, the padding of the model's table not."""
        return len(self._inner)

    def token_table(self) -> dict[str, int]:
        return dict(self._inner.get_vocab())

    @cached_property
    def special_token_ids(self) -> frozenset[int]:
        """Tokens that are no text: `decode` leaves them out."""
        added = self._inner.added_tokens_decoder
        return frozenset(self._inner.all_special_ids) | {token_id for token_id, token in added.items() if token.special}

    @property
    def inner(self) -> Any:
        """The transformers tokenizer."""
        return self._inner

    @property
    def backend(self) -> Any:
        """The `tokenizers.Tokenizer`, for incremental decoding with its DecodeStream."""
        return self._inner.backend_tokenizer


def _plain_decoder(inner: Any) -> Callable[..., str] | None:
    """The backend's own decode, where transformers would do nothing but call it, at three times the cost."""
    from transformers import PreTrainedTokenizerFast

    kind = type(inner)
    if not isinstance(inner, PreTrainedTokenizerFast) or (kind.decode, kind._decode) != (
        PreTrainedTokenizerFast.decode,
        PreTrainedTokenizerFast._decode,
    ):
        return None
    decode: Callable[..., str] = inner.backend_tokenizer.decode
    return decode


def same_tokens(target: Tokenizer, draft: Tokenizer) -> str | None:
    """None if every id that both tables hold stands for the same token; otherwise the first difference, in words.

    One table may be longer than the other: what lies past the shorter one's end is padding to it.
    """
    target_tokens, draft_tokens = _by_id(target), _by_id(draft)
    shared = min(max(target_tokens, default=-1), max(draft_tokens, default=-1)) + 1
    for token_id in range(shared):
        ours, theirs = target_tokens.get(token_id), draft_tokens.get(token_id)
        if ours != theirs:
            return (
                f"the draft's tokens are not the target's: id {token_id} is {ours!r} in the target and {theirs!r} in "
                "the draft. Speculation needs one token table: pick a draft of the target's own family."
            )
    return None if shared else "the target's or the draft's token table is empty."


def _by_id(tokenizer: Tokenizer) -> dict[int, str]:
    return {token_id: token for token, token_id in tokenizer.token_table().items()}


def _bad(reason: str) -> InvalidRequestError:
    return InvalidRequestError(reason, param="messages", code="invalid_messages")


def _non_empty(messages: Sequence[Message]) -> Sequence[Message]:
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise _bad('messages must be a list of {"role": …, "content": …}.')
    if not messages:
        raise _bad("messages is empty: give at least one message.")
    return messages


def _checked(index: int, message: Message) -> dict[str, Any]:
    """The message with its content as one string; parts of type text are joined, other parts refused."""
    if not isinstance(message, Mapping):
        raise _bad(f"messages[{index}] is a {type(message).__name__}; it must be an object with a role and a content.")
    if not isinstance(message.get("role"), str):
        raise _bad(f"messages[{index}] needs a 'role' (system, user or assistant).")
    if message.get("content") is None and not message.get("tool_calls"):
        raise _bad(f"messages[{index}] needs a 'content'.")
    return {**message, "content": _content(index, message.get("content"))}


def _content(index: int, content: Any) -> str | None:
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise _bad(f"messages[{index}].content must be text or a list of parts, not a {type(content).__name__}.")
    return "".join(_part(index, part) for part in content)


def _part(index: int, part: Any) -> str:
    if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    raise _bad(f"messages[{index}].content holds a part of type '{kind}'; only text parts are supported.")
