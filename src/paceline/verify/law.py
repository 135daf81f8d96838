"""The law a target promises: from raw logits to probabilities, in float64, written from the definitions.

This is the measuring stick of `paceline verify`, so it shares no code with what it measures. In this order, which
is vLLM's: allowed_token_ids; min_tokens (ends get no probability before so many tokens are out); logit_bias;
repetition_penalty over prompt and output (a positive logit is divided, a negative one multiplied: Keskar et al.
2019, arXiv 1909.05858); frequency_ and presence_penalty over the output alone (OpenAI); temperature; min_p; top_k;
top_p, each on what the one before left. Ties at an edge of min_p, top_k or top_p are all kept. Temperature 0 is the
one-hot law of the largest logit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_LAW_FIELDS = {
    "temperature", "top_p", "top_k", "min_p", "logit_bias", "allowed_token_ids", "min_tokens",
    "frequency_penalty", "presence_penalty", "repetition_penalty",
}  # fmt: skip
# Fields that end an answer or show it, and leave the law of a token as it is.
_OTHER_FIELDS = {"max_tokens", "ignore_eos", "seed", "n", "detokenize"}


def check_fields(params: Mapping[str, Any]) -> None:
    """A parameter that this page does not know would be measured against the wrong law."""
    unknown = sorted(params.keys() - _LAW_FIELDS - _OTHER_FIELDS)
    if unknown:
        raise ValueError(f"The reference law does not know {', '.join(unknown)}.")


def processed_logits(
    raw: Array, params: Mapping[str, Any], prompt: Sequence[int], output: Sequence[int], ends: Sequence[int]
) -> Array:
    """Bias, masks and penalties on raw logits [V] of the token that follows prompt + output.

    `ends`: the token ids that end an answer, held back until `min_tokens` are out.
    """
    logits = np.array(raw, dtype=np.float64)
    allowed = params.get("allowed_token_ids")
    if allowed is not None:
        others = np.ones(len(logits), dtype=bool)
        others[list(allowed)] = False
        logits[others] = -np.inf
    if len(output) < params.get("min_tokens", 0):
        logits[list(ends)] = -np.inf
    for token, bias in (params.get("logit_bias") or {}).items():
        logits[token] += bias
    return _penalised(logits, params, prompt, output)


def _penalised(logits: Array, params: Mapping[str, Any], prompt: Sequence[int], output: Sequence[int]) -> Array:
    repetition = params.get("repetition_penalty", 1.0)
    for token in {*prompt, *output} if repetition != 1.0 else ():
        logits[token] = logits[token] / repetition if logits[token] > 0 else logits[token] * repetition
    for token in set(output):
        logits[token] -= params.get("frequency_penalty", 0.0) * output.count(token)
        logits[token] -= params.get("presence_penalty", 0.0)
    return logits


def laws(logits: Array, params: Mapping[str, Any], rounding: float) -> list[Array]:
    """The law of processed logits [V], and those that rounding could have made of it at an edge.

    Where min_p, top_k or top_p cut, a probability may lie on either side once the logits carry an error;
    `rounding` is that error, relative, of a probability. The first law is the exact one; others differ in what
    they keep.
    """
    found: list[Array] = []
    for slack in (0.0, rounding, -rounding):
        law = _law(logits, params, slack)
        if not any(np.array_equal(law > 0, other > 0) for other in found):
            found.append(law)
    return found


def _law(logits: Array, params: Mapping[str, Any], slack: float) -> Array:
    temperature = params.get("temperature", 1.0)
    if temperature == 0.0:
        best = logits >= logits.max() - max(slack, 0.0)
        one_hot: Array = best / best.sum()
        return one_hot
    scaled = logits / temperature
    p: Array = np.exp(scaled - scaled.max())
    p /= p.sum()
    min_p, top_k, top_p = params.get("min_p", 0.0), params.get("top_k", 0), params.get("top_p", 1.0)
    if min_p > 0.0:
        p = _keep(p, p >= min_p * p.max() * (1.0 - slack))
    if 0 < top_k < len(p):
        p = _keep(p, p >= np.partition(p, -top_k)[-top_k] * (1.0 - max(slack, 0.0)))
    if top_p < 1.0:
        p = _keep(p, p >= _nucleus_edge(p, top_p + slack) * (1.0 - abs(slack)))
    return p


def _keep(p: Array, kept: NDArray[np.bool_]) -> Array:
    p = np.where(kept, p, 0.0)
    result: Array = p / p.sum()
    return result


def _nucleus_edge(p: Array, mass: float) -> float:
    """Probability of the last token of the smallest set of likeliest tokens that holds `mass`."""
    ordered = np.sort(p[p > 0])[::-1]
    reached = int(np.searchsorted(np.cumsum(ordered), mass, side="left"))
    return float(ordered[min(reached, len(ordered) - 1)])
