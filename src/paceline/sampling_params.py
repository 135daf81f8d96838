"""SamplingParams: how one request is sampled. The names and defaults are vLLM's.

Every field is honoured or refused when the object is made; none is ignored.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

from paceline.errors import InvalidRequestError, did_you_mean
from paceline.request_speculation import RequestSpeculation, speculation_of
from paceline.sampling_limits import check_sizes
from paceline.structured.constraint import Constraint
from paceline.structured.params import constraint_of

_SHOWN = 80  # characters of a wrong value that an error quotes
# Fields that will not come, with the reason.
_NEVER: dict[str, tuple[tuple[Any, ...], str]] = {
    "logits_processors": ((None, []), "code of the user inside the sampler is not supported"),
    "truncate_prompt_tokens": ((None, -1), "prompts are never cut silently"),
    "spaces_between_special_tokens": ((None, True), "text is what the tokenizer makes of the tokens"),
    "flat_logprobs": ((None, False), "logprobs are one dict a token"),
    "best_of": ((None, 1), "answers are not ranked; ask for several with n"),
    "extra_args": ((None, {}), "there is nothing that would read them"),
}
_BEAM_SEARCH: dict[str, tuple[Any, ...]] = {
    "use_beam_search": (None, False),
    "length_penalty": (None, 1, 1.0),
    "early_stopping": (None, False),
}


def _refuse(message: str, param: str) -> InvalidRequestError:
    return InvalidRequestError(message, param=param)


def _check(condition: bool, param: str, expected: str, value: object) -> None:
    if not condition:
        raise _refuse(f"{param} must be {expected}, not {_shown(value)}.", param)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_unicode(text: object) -> bool:
    try:
        str(text).encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fields:
    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0 or -1: no limit
    min_p: float = 0.0
    seed: int | None = None
    stop: list[str] = field(default_factory=list)
    stop_token_ids: list[int] = field(default_factory=list)
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    max_tokens: int | None = 16  # None: as many as max_model_len leaves room for
    presence_penalty: float = 0.0  # over the output, drafts before a place included
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0  # over prompt and output; above 1 avoids what was said before
    bad_words: list[str] = field(default_factory=list)  # texts that the answer must not contain
    logprobs: int | None = None  # alternatives a token, 0 .. the engine's max_logprobs; -1: all; None: no logprobs
    prompt_logprobs: int | None = None  # the same for the prompt's tokens
    logit_bias: dict[int, float] = field(default_factory=dict)
    allowed_token_ids: list[int] | None = None
    structured_outputs: Constraint | None = None  # given as StructuredOutputsParams or a dict: see structured/params.py
    speculation: RequestSpeculation | None = None  # how many drafts, of what: an object, see request_speculation.py
    detokenize: bool = True
    skip_special_tokens: bool = True


class SamplingParams(_Fields):
    """Frozen; equal by value. Unknown or out-of-range arguments raise InvalidRequestError naming the field.

    temperature 0 is greedy. `seed` makes a request repeatable whatever else runs beside it.
    """

    __slots__ = ()

    def __init__(self, **arguments: Any) -> None:
        known = {f.name for f in dataclasses.fields(_Fields)}
        fields: dict[str, Any] = {}
        for name, value in _renamed(arguments).items():
            if name in known:
                fields[name] = value
            else:
                _refuse_unknown(name, value, known)
        _normalise(fields)
        super().__init__(**fields)
        _validate(self)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


def _renamed(arguments: dict[str, Any]) -> dict[str, Any]:
    """`guided_decoding` is vLLM's older name of `structured_outputs`."""
    older = arguments.get("guided_decoding")
    if older is not None and arguments.get("structured_outputs") is not None:
        raise _refuse("guided_decoding is the older name of structured_outputs; give one of them.", "guided_decoding")
    rest = {name: value for name, value in arguments.items() if name != "guided_decoding"}
    return rest if older is None else rest | {"structured_outputs": constraint_of(older, "guided_decoding")}


def _refuse_unknown(name: str, value: object, known: set[str]) -> None:
    """Return silently only for a field we do not have whose value asks for nothing."""
    if name in _BEAM_SEARCH:
        if _is_one_of(value, _BEAM_SEARCH[name]):
            return
        raise _refuse(
            f"{name}={_shown(value)}: beam search does not go with speculative decoding and is not offered. "
            "Use n with temperature > 0 for several answers.",
            name,
        )
    if name in _NEVER:
        neutral, reason = _NEVER[name]
        if _is_one_of(value, neutral):
            return
        raise _refuse(f"{name}={_shown(value)} is not supported: {reason}; leave it out.", name)
    raise _refuse(f"Unknown sampling parameter '{name:.80}'.{did_you_mean(name, known | set(_NEVER))}", name)


def _is_one_of(value: object, neutral: tuple[Any, ...]) -> bool:
    """Equality that tells True from 1."""
    return any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in neutral)


_NONE_MEANS_DEFAULT = (
    "stop", "stop_token_ids", "logit_bias", "bad_words", "presence_penalty", "frequency_penalty", "repetition_penalty",
)  # fmt: skip


def _normalise(fields: dict[str, Any]) -> None:
    """Bring the spellings that vLLM and OpenAI allow to one form."""
    for name in _NONE_MEANS_DEFAULT:
        if name in fields and fields[name] is None:
            del fields[name]
    if isinstance(fields.get("stop"), str):
        fields["stop"] = [fields["stop"]]
    check_sizes(fields)
    if "structured_outputs" in fields:
        fields["structured_outputs"] = constraint_of(fields["structured_outputs"], "structured_outputs")
    if "speculation" in fields:
        fields["speculation"] = speculation_of(fields["speculation"])
    if fields.get("top_k") == -1:
        fields["top_k"] = 0
    bias = fields.get("logit_bias")
    if isinstance(bias, dict):
        try:
            fields["logit_bias"] = {int(token): float(value) for token, value in bias.items()}
        except (TypeError, ValueError):
            raise _refuse("logit_bias must map token ids to numbers.", "logit_bias") from None


def _validate(p: _Fields) -> None:
    _check(_is_int(p.n) and 1 <= p.n <= 128, "n", "an integer between 1 and 128", p.n)
    _check(
        _is_number(p.temperature) and 0.0 <= p.temperature <= 100.0,
        "temperature", "a number between 0 and 100", p.temperature,
    )  # fmt: skip
    _check(_is_number(p.top_p) and 0.0 < p.top_p <= 1.0, "top_p", "above 0 and at most 1", p.top_p)
    _check(_is_int(p.top_k) and p.top_k >= 0, "top_k", "a positive integer, or 0 or -1 for no limit", p.top_k)
    _check(_is_number(p.min_p) and 0.0 <= p.min_p <= 1.0, "min_p", "a number between 0 and 1", p.min_p)
    _check(
        p.seed is None or (_is_int(p.seed) and -(2**63) <= p.seed < 2**64),
        "seed", "an integer of 64 bits", p.seed,
    )  # fmt: skip
    _check(
        isinstance(p.stop, list) and all(isinstance(s, str) and s for s in p.stop),
        "stop", "a string or a list of non-empty strings", p.stop,
    )  # fmt: skip
    _check(
        isinstance(p.stop_token_ids, list) and all(_is_int(t) and t >= 0 for t in p.stop_token_ids),
        "stop_token_ids", "a list of token ids", p.stop_token_ids,
    )  # fmt: skip
    for name in ("stop", "bad_words"):
        _check(
            all(map(_is_unicode, getattr(p, name))), name, "valid Unicode, without lone surrogates", getattr(p, name)
        )
    _check(p.detokenize or not p.stop, "stop", "empty when detokenize is off: stop strings need text", p.stop)
    for name in ("include_stop_str_in_output", "ignore_eos", "detokenize", "skip_special_tokens"):
        _check(isinstance(getattr(p, name), bool), name, "true or false", getattr(p, name))
    _check(
        p.max_tokens is None or (_is_int(p.max_tokens) and p.max_tokens >= 1),
        "max_tokens", "a positive integer", p.max_tokens,
    )  # fmt: skip
    _check(_is_int(p.min_tokens) and p.min_tokens >= 0, "min_tokens", "an integer of at least 0", p.min_tokens)
    _check(
        p.max_tokens is None or p.min_tokens <= p.max_tokens,
        "min_tokens", f"at most max_tokens ({p.max_tokens})", p.min_tokens,
    )  # fmt: skip
    for name in ("presence_penalty", "frequency_penalty"):
        value = getattr(p, name)
        _check(_is_number(value) and -2.0 <= value <= 2.0, name, "a number between -2 and 2", value)
    _check(
        _is_number(p.repetition_penalty) and 1e-3 <= p.repetition_penalty <= 1e3,
        "repetition_penalty", "a number between 0.001 and 1000", p.repetition_penalty,
    )  # fmt: skip
    _check(
        isinstance(p.bad_words, list) and all(isinstance(word, str) and word.strip() for word in p.bad_words),
        "bad_words", "a list of texts that are more than spaces", p.bad_words,
    )  # fmt: skip
    _check(
        p.structured_outputs is None or not p.ignore_eos,
        "ignore_eos", "false with structured output, behind whose end nothing may follow", p.ignore_eos,
    )  # fmt: skip
    for name in ("logprobs", "prompt_logprobs"):
        value = getattr(p, name)
        _check(
            value is None or (_is_int(value) and value >= -1),
            name, "an integer of at least 0, or -1 for the whole vocabulary", value,
        )  # fmt: skip
    _check(
        isinstance(p.logit_bias, dict) and all(k >= 0 and -100 <= v <= 100 for k, v in p.logit_bias.items()),
        "logit_bias", "a map of token ids to numbers between -100 and 100", p.logit_bias,
    )  # fmt: skip
    _check(
        p.allowed_token_ids is None
        or (
            isinstance(p.allowed_token_ids, list)
            and len(p.allowed_token_ids) > 0
            and all(_is_int(t) and t >= 0 for t in p.allowed_token_ids)
        ),
        "allowed_token_ids", "a non-empty list of token ids", p.allowed_token_ids,
    )  # fmt: skip


def check_num_logprobs(params: SamplingParams, limit: int) -> None:
    """Refuse more alternatives a token than the engine's max_logprobs (-1: any number)."""
    for name in ("logprobs", "prompt_logprobs"):
        value = getattr(params, name)
        if value is not None and limit != -1 and not 0 <= value <= limit:
            what = "the whole vocabulary" if value == -1 else f"{value} alternatives a token"
            raise _refuse(
                f"{name} must be between 0 and {limit}, not {value}: {what} is more than this engine's "
                "max_logprobs allows.",
                name,
            )
