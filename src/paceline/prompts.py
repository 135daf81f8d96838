"""What may stand where a prompt is asked for, and its token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from paceline.errors import InvalidRequestError, did_you_mean

if TYPE_CHECKING:
    from paceline.tokenizer import Tokenizer

Prompt = str | Sequence[int] | Mapping[str, Any]
_KEYS = ("prompt", "prompt_token_ids")
_SALT = "cache_salt"


@dataclass(frozen=True, slots=True)
class TokenizedPrompt:
    text: str | None  # None: it was given in token ids, or as messages
    token_ids: list[int]
    cache_salt: str = ""  # the prefix cache is shared among prompts of one salt alone


def as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or many as a list. A list of integers is one prompt in token ids."""
    if isinstance(prompts, str | Mapping) or _is_token_ids(prompts):
        return [cast(Prompt, prompts)]
    if isinstance(prompts, Sequence):
        return cast(list[Prompt], list(prompts))
    raise _wrong(prompts)


def tokenize(prompt: Prompt, tokenizer: Tokenizer | None) -> TokenizedPrompt:
    salt = ""
    if isinstance(prompt, Mapping):
        salt, prompt = _cache_salt(prompt), _unwrapped(prompt)
    if isinstance(prompt, str):
        if tokenizer is None:
            raise InvalidRequestError("There is no tokenizer: give the prompt as token ids.", param="prompt")
        return TokenizedPrompt(prompt, encode_text(prompt, tokenizer), salt)
    if _is_token_ids(prompt) or prompt == []:
        return TokenizedPrompt(None, [int(token) for token in prompt], salt)
    raise _wrong(prompt)


def encode_text(text: str, tokenizer: Tokenizer) -> list[int]:
    """Token ids of a text; half of a surrogate pair, which JSON can carry, is refused and not passed on."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"The prompt is not valid Unicode: a lone surrogate at character {error.start}.", param="prompt"
        ) from None
    return tokenizer.encode(text)


def _cache_salt(prompt: Mapping[str, Any]) -> str:
    salt = prompt.get(_SALT)
    if salt is None:
        return ""
    if not isinstance(salt, str) or not 1 <= len(salt) <= 256:
        raise InvalidRequestError("A prompt's cache_salt must be text of 1 to 256 characters.", param=_SALT)
    return salt


def _unwrapped(prompt: Mapping[str, Any]) -> str | Sequence[int]:
    for key in prompt:
        if key not in (*_KEYS, _SALT):
            raise InvalidRequestError(
                f"Unknown key '{key}' in a prompt.{did_you_mean(str(key), (*_KEYS, _SALT))}", param="prompt"
            )
    values = [prompt[key] for key in _KEYS if key in prompt]
    if len(values) != 1:
        raise InvalidRequestError('A prompt is {"prompt": text} or {"prompt_token_ids": ids}.', param="prompt")
    value: str | Sequence[int] = values[0]
    return value


def _is_token_ids(value: object) -> bool:
    """Integers, those of numpy and torch included; never empty, because an empty list is no prompts at all."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence) or not value:
        return False
    return all(hasattr(item, "__index__") and not isinstance(item, bool) for item in value)


def _wrong(prompt: object) -> InvalidRequestError:
    return InvalidRequestError(
        f"A prompt is text, a list of token ids, or a dict with one of these; not {type(prompt).__name__}.",
        param="prompt",
    )
