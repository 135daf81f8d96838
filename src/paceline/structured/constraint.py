"""Constraint: what an answer must be, checked and in one form; and Grammar: a constraint with its ends."""

from __future__ import annotations

from typing import Literal

import msgspec

from paceline.errors import InvalidRequestError

Kind = Literal["json_schema", "regex", "ebnf", "lark", "structural_tag"]


class Constraint(msgspec.Struct, frozen=True, kw_only=True):
    """One language. `source` is what xgrammar compiles: JSON text, a pattern, or the text of a grammar.

    compact   JSON without any white space that the schema does not ask for
    param     the field of the request that it came from, for errors found when it is compiled
    """

    kind: Kind
    source: str
    compact: bool = False
    param: str = "structured_outputs"

    @property
    def key(self) -> tuple[str, str, bool]:
        """Equal for equal languages, wherever they came from."""
        return self.kind, self.source, self.compact


class GrammarError(ValueError):
    """A constraint that does not compile; the message says why, and not which field it was."""

    def as_refusal(self, constraint: Constraint) -> InvalidRequestError:
        return InvalidRequestError(f"{constraint.param} cannot be used: {self}", param=constraint.param)


class NotNowError(GrammarError):
    """It is not the constraint's fault, and may go well the next time."""


class Grammar(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan carries for a row: `end_token_ids` are legal where the constraint is met, and only there."""

    constraint: Constraint
    end_token_ids: tuple[int, ...]

    def encode(self) -> str:
        return msgspec.json.encode(self).decode()


def decode_grammar(text: str) -> Grammar:
    return msgspec.json.decode(text, type=Grammar)
