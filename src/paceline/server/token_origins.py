"""Where each token of a stream came from, beside its text: `stream_options.include_token_origins`.

A chunk is one step: one pass of the target over this answer. Its choice then has

    "paceline": {"num_drafted": 5, "origins": ["accepted", "recovered"], "texts": [" the", " cat"]}

accepted    a draft that the target kept
recovered   the target's own token in place of the first draft that it rejected
bonus       the target's own token behind drafts that were all kept
plain       the target's own token where nothing was drafted

`texts[i]` is what token i added to the visible text: "" while a character or a stop string is open, and for the token
that ends an answer. All of them joined are the text of the answer; they may be a character ahead of the chunk's.
"""

from __future__ import annotations

from typing import Any, Literal

from paceline.sampling_params import SamplingParams
from paceline.sequence import FinishReason, SequenceDelta
from paceline.text_stream import TextStream
from paceline.tokenizer import Tokenizer

Origin = Literal["accepted", "recovered", "bonus", "plain"]


def origins_of(delta: SequenceDelta) -> list[Origin]:
    """One entry a token of the delta."""
    accepted: list[Origin] = ["accepted"] * delta.num_accepted
    own: Origin = "recovered"
    if delta.num_drafted == 0:
        own = "plain"
    elif delta.num_accepted == delta.num_drafted:
        own = "bonus"
    return [*accepted, *[own] * (len(delta.token_ids) - delta.num_accepted)]


class TokenOrigins:
    """The origins of one request's answers, each of which has a text of its own to be cut at the tokens' borders."""

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams, num_answers: int) -> None:
        self._hides_end = not params.include_stop_str_in_output
        self._streams = [_stream(tokenizer, params) for _ in range(num_answers)]

    def mark(self, choice: dict[str, Any], index: int, delta: SequenceDelta) -> dict[str, Any]:
        """The choice of a chunk, with the origins of its tokens."""
        told = {"num_drafted": delta.num_drafted, "origins": origins_of(delta), "texts": self._texts(index, delta)}
        return {**choice, "paceline": told}

    def _texts(self, index: int, delta: SequenceDelta) -> list[str]:
        """What each token adds: a TextStream as has written the delta's text, but fed a token at a time."""
        stream, is_stopped = self._streams[index], False
        texts: list[str] = []
        for token_id in delta.token_ids:
            if _is_hidden_end(delta, len(texts), self._hides_end):
                break
            is_stopped = stream.feed([token_id]).stop is not None
            texts.append(stream.take())
        if delta.finish_reason is not None and not is_stopped:
            rest = stream.finish()
            texts = [*texts[:-1], texts[-1] + rest] if texts else [rest]
        return texts + [""] * (len(delta.token_ids) - len(texts))


def _stream(tokenizer: Tokenizer, params: SamplingParams) -> TextStream:
    return TextStream(
        tokenizer,
        stop=params.stop,
        include_stop=params.include_stop_str_in_output,
        skip_special_tokens=params.skip_special_tokens,
        min_tokens=params.min_tokens,
    )


def _is_hidden_end(delta: SequenceDelta, place: int, hides_end: bool) -> bool:
    """The token that ends an answer has no text, unless a stop string ended it: then its text is cut there."""
    ends = delta.finish_reason is FinishReason.STOP and not isinstance(delta.stop_reason, str)
    return hides_end and ends and place == len(delta.token_ids) - 1
