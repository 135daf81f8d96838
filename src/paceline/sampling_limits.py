"""How much one request may name in its sampling parameters.

Every stop string is looked for behind every token, every bad word is tokenised in the engine's own loop, and every
token id is sent along and looked at in each step: without a bound one request would hold up all the others.
Sizes are checked first, so that a refusal costs nothing either.
"""

from __future__ import annotations

from collections.abc import Mapping

from paceline.errors import InvalidRequestError

MAX_ENTRIES = {"stop": 1000, "bad_words": 1000, "stop_token_ids": 1024, "logit_bias": 4096, "allowed_token_ids": 16_384}
MAX_CHARACTERS = {"stop": 1024, "bad_words": 256}  # of one text
MAX_CHARACTERS_TOGETHER = 16_384  # of all texts of one field
_UNITS = {"stop": "texts", "bad_words": "texts", "logit_bias": "entries"}  # the others: token ids


def check_sizes(given: Mapping[str, object]) -> None:
    """Raises InvalidRequestError, which names the field and its limit. Values of a wrong type are left to others."""
    for name, most in MAX_ENTRIES.items():
        value = given.get(name)
        if isinstance(value, list | dict) and len(value) > most:
            what = _UNITS.get(name, "token ids")
            raise InvalidRequestError(f"{name} has {len(value)} {what}; at most {most} are allowed.", param=name)
    for name, most in MAX_CHARACTERS.items():
        _check_texts(name, given.get(name), most)


def _check_texts(name: str, value: object, most: int) -> None:
    if not isinstance(value, list):
        return
    lengths = [len(text) for text in value if isinstance(text, str)]
    longest = max(lengths, default=0)
    if longest > most:
        raise InvalidRequestError(
            f"{name} has a text of {longest} characters; at most {most} are allowed in one.", param=name
        )
    if sum(lengths) > MAX_CHARACTERS_TOGETHER:
        raise InvalidRequestError(
            f"{name} has {sum(lengths)} characters in all; at most {MAX_CHARACTERS_TOGETHER} are allowed together.",
            param=name,
        )
