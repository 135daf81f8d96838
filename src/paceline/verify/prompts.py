"""Where to cut a prompt so that its answers say much.

The first token of an answer is not drafted, and places behind it are tested behind equal prefixes. So a prompt is
best cut where the next token is almost certain, and the one behind it is not: then nearly all answers share the
prefix of the first drafted place, and its law has something to get wrong.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.verify.cases import NUM_ALLOWED, REWARDS, Prompt
from paceline.verify.law import Array, laws, processed_logits
from paceline.verify.oracle import Oracle

_SEARCHED = 32  # cuts tried, from the end
_LONGEST = 128  # tokens of a prompt that is worth cutting at all: each cut is a pass of the oracle over it
_SHORTEST = 16
_LIKELY = 12
_ENOUGH = 2.0  # nats of entropy, beyond which more is no gain


def cut(token_ids: Sequence[int], oracle: Oracle, block_size: int) -> Prompt:
    """The best beginning of a prompt, with the law behind it explored."""
    candidates = _candidates(token_ids, block_size)
    firsts = [int(raw.argmax()) for raw in oracle.logits(candidates)]
    certainty = [float(_law(raw).max()) for raw in oracle.logits(candidates)]
    behind = [(*text, first) for text, first in zip(candidates, firsts, strict=True)]
    next_laws = [_law(raw) for raw in oracle.logits(behind)]
    worth = [sure * min(_entropy(law), _ENOUGH) for sure, law in zip(certainty, next_laws, strict=True)]
    best = int(np.argmax(worth))
    likely = (-next_laws[best]).argsort(kind="stable")[:_LIKELY]
    return Prompt(candidates[best], firsts[best], tuple(int(token) for token in likely))


def most_repeating(prompts: Sequence[Prompt], oracle: Oracle) -> int:
    """The prompt whose second drafted place changes most, by TV, when a penalty leaves the first draft out."""
    return int(np.argmax([_sensitivity(prompt, oracle) for prompt in prompts]))


def _sensitivity(prompt: Prompt, oracle: Oracle) -> float:
    allowed = [token for token in prompt.likely if token != prompt.first][:NUM_ALLOWED]
    params = {**REWARDS, "allowed_token_ids": [prompt.first, *allowed]}

    def penalised(output: tuple[int, ...], counted: tuple[int, ...]) -> Array:
        (raw,) = oracle.logits([(*prompt.token_ids, *output)])
        return laws(processed_logits(raw, params, prompt.token_ids, counted, ()), params, 0.0)[0]

    first = (prompt.first,)
    drafts = penalised(first, first)
    return sum(
        float(
            drafts[draft]
            * np.abs(penalised((*first, draft), (*first, draft)) - penalised((*first, draft), first)).sum()
        )
        for draft in params["allowed_token_ids"]
    )


def _candidates(token_ids: Sequence[int], block_size: int) -> list[tuple[int, ...]]:
    length = len(token_ids)
    if length > _LONGEST or length <= _SHORTEST:
        return [_trimmed(token_ids, block_size)]
    ends = range(max(_SHORTEST + 1, length - _SEARCHED + 1), length + 1)
    return [_trimmed(token_ids[:end], block_size) for end in ends]


def _trimmed(token_ids: Sequence[int], block_size: int) -> tuple[int, ...]:
    """The end of a text, whose last block holds one token: the prefix cache then has all the rest."""
    length = len(token_ids)
    kept = length - (length - 1) % block_size
    return tuple(token_ids[-kept:])


def _law(raw: Array) -> Array:
    return laws(raw, {}, 0.0)[0]


def _entropy(law: Array) -> float:
    positive = law[law > 0]
    return float(-(positive * np.log(positive)).sum())
