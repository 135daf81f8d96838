"""NgramProposer: prompt lookup. What followed the last few tokens when they last occurred is proposed again.

Saxena 2023, "Prompt lookup decoding". No model and no KV; q is one-hot. The longest n-gram wins, and of its
occurrences the latest one. Where the occurrence runs into the end of the text, copying goes on into the
copy, as in LZ77: a text of period 3 is continued with period 3 for all K tokens. What leaves a row's grammar
is cut off.
"""

from __future__ import annotations

import numpy as np
import torch

from paceline.layers.sampling import SamplingBatch
from paceline.plan import StepPlan
from paceline.speculative.proposers.base import emitting_rows, nothing
from paceline.speculative.rejection import Proposal


class NgramProposer:
    def __init__(self, *, min_length: int, max_length: int) -> None:
        self._lengths = range(max_length, min_length - 1, -1)

    def propose(self, plan: StepPlan, sampling: SamplingBatch) -> Proposal:
        rows = emitting_rows(plan)
        found = [
            lookup(row.history, row.num_draft_tokens, self._lengths) if row.history and row.num_draft_tokens else []
            for row in rows
        ]
        found = [tokens[: sampling.num_legal(index, tokens)] for index, tokens in enumerate(found)]
        width = max(map(len, found), default=0)
        if width == 0:
            return nothing(rows, sampling.device)
        padded = [tokens + [-1] * (width - len(tokens)) for tokens in found]
        return Proposal(torch.tensor(padded, dtype=torch.int64, device=sampling.device), list(map(len, found)))


def lookup(history: list[int], k: int, lengths: range) -> list[int]:
    """The k tokens that followed the latest earlier occurrence of the longest suffix; [] if there is none."""
    text = np.array(history, dtype=np.int64)
    for length in lengths:
        end = _latest_occurrence(text, length)
        if end is not None:
            return _copy(history, end, k)
    return []


def _latest_occurrence(text: np.ndarray[tuple[int], np.dtype[np.int64]], length: int) -> int | None:
    """Index behind the latest earlier occurrence of the last `length` tokens."""
    size = len(text)
    if size <= length:
        return None
    matches = np.ones(size - length, dtype=bool)  # matches[i]: text[i : i + length] equals the suffix
    for offset in range(length):
        matches &= text[offset : size - length + offset] == text[size - length + offset]
    places = np.flatnonzero(matches)
    return int(places[-1]) + length if len(places) else None


def _copy(history: list[int], source: int, k: int) -> list[int]:
    period = len(history) - source
    return [history[source + step % period] for step in range(k)]
