"""Restrictions: what changes a row's logits before its law is taken.

The order is vLLM's: grammar, allowed_token_ids, bad_words, min_tokens, logit_bias, then the penalties for
repetition, frequency and presence. A masked token is at minus infinity, where nothing behind moves it.

Every place sees the tokens before it, drafts included: place i follows the row's committed tokens and its
drafts 0..i-1. Were the drafts left out, a penalised law would be that of another text. Rows without
restrictions cost nothing; only grammars and bad words of several tokens need the drafts on the host.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from paceline.plan import RowPlan, SamplingPlan

_NOTHING = float("-inf")


class MaskProvider(Protocol):
    """Says which tokens a row's grammar allows."""

    def masks(self, row: RowPlan, drafts: list[int], first_place: int, num_places: int) -> Tensor | None:
        """Allowed tokens at places first_place .. first_place+num_places-1: bool [num_places, V], on any device.

        Place i follows row.history and drafts[:i]; len(drafts) = first_place + num_places - 1. None: no limit.
        Asked only for rows whose `sampling.grammar` is set. The worker keeps no sequence between steps: an
        answer depends on the arguments alone, whatever an implementation caches.
        """
        ...

    def num_legal(self, row: RowPlan, drafts: list[int]) -> int:
        """How many of the drafts the row's grammar follows, from the first on."""
        ...

    def keep(self, seq_ids: Iterable[int]) -> None:
        """What is cached for other sequences is not needed in this step, and must not stay."""
        ...

    def failure(self, seq_id: int) -> str | None:
        """Why nothing is allowed, where that is not the grammar's own doing."""
        ...


class Restrictions:
    """Those of a step's emitting rows."""

    def __init__(self, rows: Seq[RowPlan], masks: MaskProvider | None = None) -> None:
        self._all = rows
        self._rows = [(index, row) for index, row in enumerate(rows) if row.sampling.edits_logits]
        self._reads_drafts = any(row.sampling.bad_words or row.sampling.grammar is not None for _, row in self._rows)
        self._masks = masks
        self._penalties = _Penalties(self._rows, {})

    @property
    def are_any(self) -> bool:
        return bool(self._rows)

    def select(self, rows: Seq[int]) -> Restrictions:
        selected = Restrictions([self._all[row] for row in rows], self._masks)
        selected._penalties = _Penalties(selected._rows, self._penalties.counted)
        return selected

    def num_legal(self, row: int, drafts: list[int]) -> int:
        """How many drafts of a row, from the first on, may be said at all."""
        if self._all[row].sampling.grammar is None or self._masks is None:
            return len(drafts)
        return self._masks.num_legal(self._all[row], drafts)

    def apply(self, logits: Tensor, drafts: Tensor, first_place: int) -> Tensor:
        """Restricted logits [B, P, V] for places first_place .. first_place+P-1; drafts [B, D], padding -1.

        The argument itself is returned where no row has a restriction, and never changed.
        """
        if not self._rows:
            return logits
        logits = logits.clone()
        on_host: list[list[int]] = drafts.tolist() if self._reads_drafts else []
        for index, row in self._rows:
            known = [token for token in on_host[index] if token >= 0] if on_host else []
            self._restrict_row(logits[index], row, known, first_place)
        self._penalties.apply(logits, drafts, first_place)
        return logits

    def _restrict_row(self, logits: Tensor, row: RowPlan, drafts: list[int], first_place: int) -> None:
        """All but the penalties, in place, on logits [P, V]."""
        plan = row.sampling
        if plan.grammar is not None:
            self._apply_grammar(logits, row, drafts, first_place)
        if plan.allowed_token_ids is not None:
            _keep_only(logits, plan.allowed_token_ids)
        if plan.bad_words:
            _ban_completions(logits, row, drafts, first_place)
        held = plan.min_tokens - row.num_output_tokens - first_place
        if held > 0 and plan.stop_token_ids:
            # num_output_tokens + first_place + i tokens stand before place i; an end is not among the min_tokens.
            _hold_back_ends(logits[:held], plan)
        if plan.logit_bias:
            ids, values = zip(*plan.logit_bias, strict=True)
            logits[:, list(ids)] += torch.tensor(values, device=logits.device)

    def _apply_grammar(self, logits: Tensor, row: RowPlan, drafts: list[int], first_place: int) -> None:
        assert self._masks is not None, "a row has a grammar and nothing here can read it"
        places = _places_in_use(logits, drafts, first_place)
        allowed = self._masks.masks(row, drafts[: first_place + places - 1], first_place, places)
        if allowed is not None:
            logits[:places].masked_fill_(~allowed.to(logits.device), _NOTHING)


def _hold_back_ends(logits: Tensor, plan: SamplingPlan) -> None:
    """Mask the ends in logits [P, V]. A grammar that allows nothing else is at its end, and wins."""
    held = logits.clone()
    held[:, list(plan.stop_token_ids)] = _NOTHING
    if plan.grammar is not None:
        at_its_end = ~held.isfinite().any(-1, keepdim=True)
        held = torch.where(at_its_end, logits, held)
    logits.copy_(held)


def _places_in_use(logits: Tensor, drafts: list[int], first_place: int) -> int:
    """How many of logits [P, V] stand behind a draft that exists; the others are padding."""
    return min(logits.shape[0], len(drafts) - first_place + 1)


def _keep_only(logits: Tensor, token_ids: tuple[int, ...]) -> None:
    ids = list(token_ids)
    kept = logits[:, ids]
    logits.fill_(_NOTHING)
    logits[:, ids] = kept


def _ban_completions(logits: Tensor, row: RowPlan, drafts: list[int], first_place: int) -> None:
    """Mask the last token of every bad word whose other tokens end the answer so far. As in vLLM a word that
    begins in the prompt does not count."""
    words = row.sampling.bad_words
    longest = max(map(len, words))
    written = row.output_history[-longest:] + drafts
    for place in range(_places_in_use(logits, drafts, first_place)):
        before = written[: len(written) - len(drafts) + first_place + place]
        banned = [word[-1] for word in words if _ends_with(before, word[:-1])]
        if banned:
            logits[place, banned] = _NOTHING


def _ends_with(text: list[int], tail: tuple[int, ...]) -> bool:
    return not tail or tuple(text[-len(tail) :]) == tail


class _Penalties:
    """Penalties of the rows that have any. Counts are of output tokens; repetition looks at the prompt as well.

    repetition (Keskar et al. 2019, arXiv 1909.05858): a token seen before has logit l/r if l > 0, else l*r.
    frequency and presence (OpenAI): l - f*count - p*(count > 0).
    """

    def __init__(self, rows: Seq[tuple[int, RowPlan]], counted: dict[int, tuple[Tensor, Tensor]]) -> None:
        """`counted` is shared by all selections of one step, so that each history is counted once."""
        self._rows = [(index, row) for index, row in rows if row.sampling.has_penalties]
        self.counted = counted

    def apply(self, logits: Tensor, drafts: Tensor, first_place: int) -> None:
        """In place, on logits [B, P, V]."""
        if not self._rows:
            return
        rows = torch.tensor([index for index, _ in self._rows], device=logits.device)
        histories = [self._count(row, logits) for _, row in self._rows]
        in_prompt = torch.stack([prompt for prompt, _ in histories])  # [Bp, V] bool
        counts = torch.stack([output for _, output in histories])  # [Bp, V] float32
        repetition, frequency, presence = _columns([row.sampling for _, row in self._rows], logits.device)
        drafts = drafts[rows]
        _add(counts, drafts[:, :first_place])
        for place in range(logits.shape[1]):
            if place:
                _add(counts, drafts[:, first_place + place - 1 : first_place + place])
            values, used = logits[rows, place], counts > 0
            values = torch.where(
                in_prompt | used, torch.where(values > 0, values / repetition, values * repetition), values
            )
            logits[rows, place] = values - frequency * counts - presence * used

    def _count(self, row: RowPlan, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Which tokens are in the prompt [V] bool, and how often each is in the output [V] float32."""
        if row.seq_id not in self.counted:
            assert row.history is not None, "a row with penalties carries its history"
            split, vocab = len(row.history) - row.num_output_tokens, logits.shape[-1]
            prompt, output = (
                np.bincount(np.array(part, dtype=np.int64), minlength=vocab)[:vocab]
                for part in (row.history[:split], row.history[split:])
            )
            self.counted[row.seq_id] = (
                torch.from_numpy(prompt > 0).to(logits.device),
                torch.from_numpy(output.astype(np.float32)).to(logits.device),
            )
        return self.counted[row.seq_id]


def _columns(plans: Seq[SamplingPlan], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """repetition, frequency and presence penalty, [Bp, 1] each."""
    table = torch.tensor(
        [(plan.repetition_penalty, plan.frequency_penalty, plan.presence_penalty) for plan in plans], device=device
    )
    repetition, frequency, presence = table.unsqueeze(-1).unbind(1)
    return repetition, frequency, presence


def _add(counts: Tensor, token_ids: Tensor) -> None:
    """Count token_ids [Bp, N] into counts [Bp, V]; padding (-1) is left out."""
    counts.scatter_add_(1, token_ids.clamp(min=0), (token_ids >= 0).to(counts.dtype))
