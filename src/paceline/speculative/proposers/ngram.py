"""NgramProposer: prompt lookup (prompt_lookup.py). No model and no KV; q is one-hot.

What leaves a row's grammar is cut off.
"""

from __future__ import annotations

import torch

from paceline.layers.sampling import SamplingBatch
from paceline.plan import RowPlan, StepPlan
from paceline.prompt_lookup import SearchableText
from paceline.speculative.proposers.base import emitting_rows
from paceline.speculative.rejection import Proposal


class NgramProposer:
    def __init__(self, *, min_length: int, max_length: int) -> None:
        self._least = min_length
        self._most = max_length

    def propose(self, plan: StepPlan, sampling: SamplingBatch) -> Proposal:
        rows = emitting_rows(plan)
        found = [legal(sampling, index, self._look_up(row)) for index, row in enumerate(rows)]
        return looked_up(found, sampling.device)

    def _look_up(self, row: RowPlan) -> list[int]:
        if not row.history or not row.num_draft_tokens:
            return []
        match = SearchableText(row.history).match(row.num_draft_tokens, self._least, self._most)
        return match.token_ids if match else []


def looked_up(found: list[list[int]], device: torch.device, failed: frozenset[int] = frozenset()) -> Proposal:
    """Tokens of each emitting row, none of them drawn."""
    width = max(map(len, found), default=0)
    padded = [tokens + [-1] * (width - len(tokens)) for tokens in found]
    ids = torch.tensor(padded, dtype=torch.int64, device=device).view(len(found), width)
    return Proposal(ids, list(map(len, found)), failed=failed, on_host=found)


def legal(sampling: SamplingBatch, index: int, tokens: list[int]) -> list[int]:
    """As far as the grammar of the row at `index` follows them."""
    return tokens[: sampling.num_legal(index, tokens)] if tokens else []
