"""SamplingParams as the body of vLLM's /v1/completions, and what its events say as our deltas."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from paceline.errors import InvalidRequestError
from paceline.plan import TokenLogprobs
from paceline.sampling_params import SamplingParams
from paceline.sequence import EngineRequest, FinishReason, SequenceDelta, SpeculationCounts
from paceline.structured.constraint import Constraint

Event = Mapping[str, Any]

# Fields with vLLM's names and meanings.
_SAME = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "min_tokens",
    "max_tokens",  # None: as many as there is room for
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "bad_words",
    "logit_bias",
    "allowed_token_ids",
    "logprobs",
    "skip_special_tokens",
)
_CONSTRAINTS = {"regex": "regex", "ebnf": "grammar", "lark": "grammar"}
_REASONS = {str(reason): reason for reason in FinishReason}
_TOKEN_ID = "token_id:"


def check_params(params: SamplingParams, *, speculates: bool) -> None:
    """Raises InvalidRequestError for what vLLM cannot do, in our words and before anything is sent."""
    if speculates and (params.min_p or params.logit_bias):
        name = "min_p" if params.min_p else "logit_bias"
        raise InvalidRequestError(
            f"{name}: vLLM has it only without speculation. Leave it out, serve without speculation, or use runtime "
            "paceline.",
            param=name,
        )
    if params.speculation is not None:
        raise InvalidRequestError("speculation: vLLM has no such choice for one request.", param="speculation")
    if params.prompt_logprobs is not None:
        raise InvalidRequestError(
            "prompt_logprobs: not with runtime vllm, whose streams do not carry them. Use runtime paceline.",
            param="prompt_logprobs",
        )


def body_of(request: EngineRequest, model: str) -> dict[str, Any]:
    params = request.sampling_params
    body = {name: getattr(params, name) for name in _SAME}
    body |= {
        "model": model,
        "prompt": request.prompt_token_ids,
        "logit_bias": {str(token): bias for token, bias in params.logit_bias.items()} or None,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }
    if params.structured_outputs is not None:
        body["structured_outputs"] = _constraint(params.structured_outputs)
    return body


def _constraint(constraint: Constraint) -> dict[str, Any]:
    if constraint.kind == "json_schema":
        whitespace = {"disable_any_whitespace": True} if constraint.compact else {}
        return {"json": json.loads(constraint.source), **whitespace}
    return {_CONSTRAINTS[constraint.kind]: constraint.source}


def delta_of(request_id: str, choice: Event) -> SequenceDelta:
    """One choice of one event. `num_accepted` is not told by vLLM."""
    reason = choice.get("finish_reason")
    return SequenceDelta(
        request_id=request_id,
        index=choice["index"],
        token_ids=list(choice.get("token_ids") or ()),
        text=choice.get("text") or "",
        logprobs=_logprobs(choice["logprobs"]) if choice.get("logprobs") else None,
        finish_reason=_reason(reason) if reason else None,
        stop_reason=choice.get("stop_reason"),
    )


def _reason(name: str) -> FinishReason:
    return _REASONS.get(name, FinishReason.STOP)  # others are stops by rules that only vLLM has


def _logprobs(given: Event) -> list[TokenLogprobs]:
    tops = given.get("top_logprobs") or [{}] * len(given["tokens"])
    return [_token_logprobs(logprob, top or {}) for logprob, top in zip(given["token_logprobs"], tops, strict=True)]


def _token_logprobs(logprob: float, top: Mapping[str, float]) -> TokenLogprobs:
    """The rank is that among the alternatives: one more than there are, where it is none of them."""
    ordered = sorted(top.items(), key=lambda entry: -entry[1])
    return TokenLogprobs(
        logprob=logprob,
        rank=1 + sum(other > logprob for _, other in ordered),
        top_ids=[int(token.removeprefix(_TOKEN_ID)) for token, _ in ordered],
        top_logprobs=[value for _, value in ordered],
    )


def counts_of(event: Event) -> SpeculationCounts | None:
    """`metrics.speculative_decoding`, which vLLM tells from 0.29 on for requests of one answer."""
    told = (event.get("metrics") or {}).get("speculative_decoding")
    if not told:
        return None
    at_least, histogram = [], list(told["acceptance_histogram"])
    for position in range(1, len(histogram)):
        at_least.append(sum(histogram[position:]))
    return SpeculationCounts(
        num_drafts=told["num_spec_steps"],
        num_draft_tokens=told["num_draft_tokens"],
        num_accepted_tokens=told["num_accepted_draft_tokens"],
        num_accepted_tokens_per_pos=at_least,
    )


def cached_tokens_of(event: Event) -> int:
    details = (event.get("usage") or {}).get("prompt_tokens_details") or {}
    return int(details.get("cached_tokens") or 0)
