"""RequestSpeculation: what one request says about its own drafts.

    SamplingParams(speculation={"num_speculative_tokens": 2})       at most two drafts a step
    {"speculation": {"num_speculative_tokens": 0}}                  none: this request is decoded plainly
    {"speculation": {"proposer": "auto"}}                           the draft model or the text, whichever is surer

The shape is checked here; what this engine can do is checked when the request reaches it (`check_speculation`).
The text is the target's own in every case; a seeded text may be another one with another K (docs/sampling.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import msgspec

from paceline.config import Proposer, SpeculativeConfig
from paceline.errors import InvalidRequestError, did_you_mean

PARAM = "speculation"
PROPOSERS: dict[str, Proposer] = {"draft_model": "draft", "ngram": "ngram"}  # by the method of the configuration


class RequestSpeculation(msgspec.Struct, frozen=True, kw_only=True):
    """num_speculative_tokens: the most drafts a step, None: as many as the engine likes. proposer: what drafts,
    None: what the configuration says."""

    num_speculative_tokens: int | None = None
    proposer: Proposer | None = None


def speculation_of(value: object) -> RequestSpeculation | None:
    """From a mapping, as users write it, or one made by hand. InvalidRequestError; None if nothing is asked for."""
    if value is None:
        return None
    if isinstance(value, RequestSpeculation):  # made by hand: its constructor checks nothing
        value = msgspec.structs.asdict(value)
    if not isinstance(value, Mapping):
        raise _refuse(
            'speculation must be an object such as {"num_speculative_tokens": 2, "proposer": "auto"}, '
            f"not {value!r:.60}."
        )
    known = RequestSpeculation.__struct_fields__
    for name in value:
        if name not in known:
            raise _refuse(f"Unknown field 'speculation.{name}'.{did_you_mean(str(name), known)}", str(name))
    given: dict[str, Any] = {name: entry for name, entry in value.items() if entry is not None}
    count = given.get("num_speculative_tokens", 0)
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise _refuse(
            f"speculation.num_speculative_tokens must be an integer of at least 0, not {count!r:.60}.",
            "num_speculative_tokens",
        )
    if given.get("proposer", "auto") not in get_args(Proposer):
        raise _refuse(
            f"speculation.proposer must be one of {', '.join(get_args(Proposer))}, not {given['proposer']!r:.60}.",
            "proposer",
        )
    return RequestSpeculation(**given)


def check_speculation(wanted: RequestSpeculation | None, config: SpeculativeConfig | None) -> None:
    """Refuse more drafts than the engine was made for, and a proposer that it has not loaded."""
    if wanted is None:
        return
    most = config.num_speculative_tokens if config else 0
    count = wanted.num_speculative_tokens
    if count is not None and count > most:
        why = f"this engine drafts at most {most} tokens a step" if most else "this engine runs without speculation"
        raise _refuse(
            f"speculation.num_speculative_tokens must be at most {most}, not {count}: {why}.", "num_speculative_tokens"
        )
    has = config.proposers if config else ()
    if wanted.proposer is not None and wanted.proposer not in ("auto", *has) and count != 0:
        why = _why_not(wanted.proposer, config)
        raise _refuse(f"speculation.proposer='{wanted.proposer}' is not available: {why}; use 'auto'.", "proposer")


def _why_not(proposer: Proposer, config: SpeculativeConfig | None) -> str:
    if config is None:
        return "this engine runs without speculation"
    if config.method == "draft_model" and proposer == "ngram":
        return "this engine drafts with 'draft' alone (an n-gram beside it needs a CPU, or enforce_eager)"
    return f"this engine has loaded '{PROPOSERS[config.method]}'"


def _refuse(message: str, field: str | None = None) -> InvalidRequestError:
    return InvalidRequestError(message, param=f"{PARAM}.{field}" if field else PARAM)
