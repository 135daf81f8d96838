"""The prompt of /v1/completions: text, token ids, or a list of either; a wrong one is told what is expected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BeforeValidator

from paceline.errors import InvalidRequestError
from paceline.server.fields import TokenId

MAX_PROMPTS = 2048  # of one request; n times as many answers are bounded by the same number


def _check_prompt(prompt: Any) -> Any:
    """Each form of a prompt, told by its first entry; pydantic would complain once for each form it tries."""
    if isinstance(prompt, str) or prompt == []:
        return prompt
    if not isinstance(prompt, list):
        raise _not_a_prompt("prompt", prompt)
    if len(prompt) > MAX_PROMPTS and isinstance(prompt[0], list | str):
        raise InvalidRequestError(
            f"prompt has {len(prompt)} prompts; at most {MAX_PROMPTS} are taken. Send several requests.", param="prompt"
        )
    if isinstance(prompt[0], list):
        for number, ids in enumerate(prompt):
            if not isinstance(ids, list):
                raise _not_a_prompt(f"prompt[{number}]", ids)
            _check_entries(f"prompt[{number}]", ids, _is_token_id)
    else:
        _check_entries("prompt", prompt, _is_text if isinstance(prompt[0], str) else _is_token_id)
    return prompt


def _check_entries(path: str, entries: list[Any], is_right: Callable[[Any], bool]) -> None:
    wrong = next((index for index, entry in enumerate(entries) if not is_right(entry)), None)
    if wrong is not None:
        raise _not_a_prompt(f"{path}[{wrong}]", entries[wrong])


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_token_id(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**31


def _not_a_prompt(path: str, value: Any) -> InvalidRequestError:
    names = {type(None): "null", list: "a list", dict: "an object", str: "a string", bool: str(value is True).lower()}
    what = names.get(type(value)) or f"{value!r:.40}"
    return InvalidRequestError(
        f"'prompt' must be a string, a list of strings, a list of token ids or a list of lists of token ids (integers "
        f"from 0); '{path}' does not fit: {what}.",
        param=path,
    )


def of_prompt(error: InvalidRequestError, number: int) -> InvalidRequestError:
    """An error about one of several prompts, with its place: prompt[2]."""
    if error.param != "prompt":
        return error
    path = f"prompt[{number}]"
    return InvalidRequestError(f"{path}: {error}", param=path, code=error.code)


PromptField = Annotated[str | list[str] | list[TokenId] | list[list[TokenId]], BeforeValidator(_check_prompt)]
