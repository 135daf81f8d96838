"""What every request body is made of: strict models, bounded numbers, and the refusal of fields by name.

Strict: "0.7" is not a number and 1 is not true. A field that is not known is a 400 with the nearest known name;
one that is known and not offered is a 400 with the reason (`unsupported.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from paceline.arguments.foreign import Foreign
from paceline.errors import InvalidRequestError, did_you_mean
from paceline.sampling_limits import check_sizes

Int = Annotated[int, Field(ge=-(2**31), lt=2**31)]  # more than that is never meant, and fits nowhere
TokenId = Annotated[int, Field(ge=0, lt=2**31)]

T = TypeVar("T")
# Only the first wrong entry is told: pydantic's errors about 100,000 of them would take a second.
Items = Annotated[list[T], Field(fail_fast=True)]


def matches(pattern: str, words: str) -> Callable[[str], str]:
    """A check for a text; where it fails the error says `words` and what was given, and no regular expression."""

    def check(text: str) -> str:
        if re.fullmatch(pattern, text) is None:
            raise PydanticCustomError("words", "{words}, not {text}", {"words": words, "text": repr(text[:80])})
        return text

    return check


_TOKEN_KEY = r"^(0|[1-9][0-9]{0,8})$"
TokenKey = Annotated[
    str,
    AfterValidator(matches(_TOKEN_KEY, 'its keys are token ids as decimal strings, such as "11"')),
    WithJsonSchema({"type": "string", "pattern": _TOKEN_KEY}),
]

UNSUPPORTED = "unsupported_parameter"


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Body(Strict):
    """The body of a request. `unsupported`: fields that are known and not offered."""

    unsupported: ClassVar[dict[str, Foreign]] = {}

    @model_validator(mode="before")
    @classmethod
    def _refuse_what_is_not_offered(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        check_unicode(body)
        for name, value in body.items():
            foreign = cls.unsupported.get(name)
            if foreign is not None and not foreign.accepts(value):
                raise InvalidRequestError(
                    f"'{name}' is not supported with this value: {foreign.reason}", param=name, code=UNSUPPORTED
                )
            if foreign is None and name not in cls.model_fields:
                guess = did_you_mean(name, [*cls.model_fields, *cls.unsupported])
                message = f"Unknown field '{name:.80}'.{guess}"
                raise InvalidRequestError(message, param=name[:80], code="unknown_parameter")
        check_sizes(body)  # before every entry is looked at
        return {name: value for name, value in body.items() if name not in cls.unsupported}


def check_unicode(body: dict[str, Any]) -> None:
    """Refuse half of a surrogate pair anywhere in a body: JSON can carry it, and no text contains it."""
    for name, value in body.items():
        waiting: list[Any] = [name, value]
        while waiting:
            part = waiting.pop()
            if isinstance(part, str) and not part.isascii():
                try:
                    part.encode()
                except UnicodeEncodeError:
                    raise InvalidRequestError(f"{name!a} is not valid Unicode: a lone surrogate.", param=name) from None
            elif isinstance(part, dict):
                waiting += [*part.keys(), *part.values()]
            elif isinstance(part, list):
                waiting += part
