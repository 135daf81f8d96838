"""The JSON that the API answers with, as plain dicts in OpenAI's shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from paceline.outputs import logprobs_by_id
from paceline.plan import TokenLogprobs
from paceline.sequence import SpeculationCounts
from paceline.server.generation import Answer, Generation
from paceline.server.token_text import token_text
from paceline.server.tools.answer import ToolAnswer

Json = dict[str, Any]
TokenBytes = Callable[[int], bytes]
_SMALLEST_LOGPROB = -9999.0  # JSON has no infinity; OpenAI writes this


def usage(generation: Generation) -> Json:
    prompt, completion = generation.num_prompt_tokens, generation.num_completion_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": generation.num_cached_tokens},
    }


def metrics(counts: SpeculationCounts, num_speculative_tokens: int) -> Json:
    """vLLM's names and shape, which AIPerf reads; null on a server without speculation (K = 0).

    A request of several answers gets the sums over all of them, where vLLM gives null.
    """
    if num_speculative_tokens == 0:
        return {"speculative_decoding": None}
    histogram = counts.acceptance_histogram(num_speculative_tokens)
    return {
        "speculative_decoding": {
            "mean_acceptance_length": counts.mean_acceptance_length,
            "draft_acceptance_rate": counts.acceptance_rate,
            "acceptance_histogram": histogram,
            "num_spec_steps": counts.num_drafts,
            "num_accepted_draft_tokens": counts.num_accepted_tokens,
            "num_draft_tokens": counts.num_draft_tokens,
            "num_spec_tokens": len(histogram) - 1,
            "num_spec_steps_by_proposer": {name: part.num_drafts for name, part in counts.by_proposer.items()},
            "num_passes": counts.num_passes,
        }
        | ({"synthetic_acceptance": True} if counts.synthetic else {})
    }


def envelope(name: str, kind: str, created: int, model: str, choices: list[Json]) -> Json:
    return {"id": name, "object": kind, "created": created, "model": model, "choices": choices}


def chat_choice(index: int, answer: Answer, logprobs: Json | None, tools: ToolAnswer | None = None) -> Json:
    """`tools` reads the calls out of the text."""
    message = {"role": "assistant", "content": answer.text, "refusal": None}
    return {
        "index": index,
        "message": tools.message(answer.text) if tools else message,
        "logprobs": logprobs,
        "finish_reason": tools.finish_reason(answer.finish_reason) if tools else answer.finish_reason,
        "stop_reason": answer.stop_reason,
    }


def chat_delta(index: int, delta: Json, finish_reason: str | None = None, logprobs: Json | None = None) -> Json:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}


def text_choice(index: int, text: str, finish_reason: str | None, logprobs: Json | None) -> Json:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}


def chat_logprobs(token_ids: Sequence[int], entries: Sequence[TokenLogprobs], spell: TokenBytes) -> Json:
    content = []
    for token_id, entry in zip(token_ids, entries, strict=True):
        alternatives = zip(entry.top_ids, entry.top_logprobs, strict=True)
        top = [_token_logprob(top_id, value, spell) for top_id, value in alternatives]
        content.append(_token_logprob(token_id, entry.logprob, spell) | {"top_logprobs": top})
    return {"content": content, "refusal": None}


def _token_logprob(token_id: int, logprob: float, spell: TokenBytes) -> Json:
    data = spell(token_id)
    return {"token": token_text(data), "logprob": max(logprob, _SMALLEST_LOGPROB), "bytes": list(data)}


def prompt_logprobs(token_ids: Sequence[int], entries: Sequence[TokenLogprobs], spell: TokenBytes) -> list[Json | None]:
    """vLLM's form: an object a token, token id to log-probability; null for the first, which nothing stands before."""

    def decoded(token_id: int) -> str:
        return token_text(spell(token_id))

    found: list[Json | None] = [None]
    for token_id, entry in zip(token_ids[1:], entries, strict=True):
        alternatives = logprobs_by_id(token_id, entry, decoded)
        found.append(
            {
                str(other): {
                    "logprob": max(value.logprob, _SMALLEST_LOGPROB),
                    "rank": value.rank,
                    "decoded_token": value.decoded_token,
                }
                for other, value in alternatives.items()
            }
        )
    return found


def text_logprobs(
    token_ids: Sequence[int], entries: Sequence[TokenLogprobs | None], spell: TokenBytes, first_offset: int
) -> Json:
    """The completions form. `text_offset` counts characters of the answer before each token.

    An entry is None where a token has no log-probability: the first one of an echoed prompt.
    """
    tokens = [token_text(spell(token_id)) for token_id in token_ids]
    offsets = [first_offset]
    for token in tokens:
        offsets.append(offsets[-1] + len(token))
    return {
        "tokens": tokens,
        "token_logprobs": [max(entry.logprob, _SMALLEST_LOGPROB) if entry else None for entry in entries],
        "top_logprobs": [
            {
                token_text(spell(top_id)): max(value, _SMALLEST_LOGPROB)
                for top_id, value in zip(entry.top_ids, entry.top_logprobs, strict=True)
            }
            if entry
            else None
            for entry in entries
        ],
        "text_offset": offsets[:-1],
    }
