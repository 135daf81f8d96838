"""SpeculativeDecoder: one step of every row. Read `run`, top to bottom: propose -> verify -> accept.

Worked example, K = 3, a row with n committed tokens (the last is x) whose draft proposes d1 d2 d3:

    the target reads        x    d1   d2   d3      at positions n-1 .. n+2
    its laws at places      0    1    2    3       are for positions n .. n+3
    d1 kept, d2 rejected    emitted: d1 and the token recovered at place 1; num_accepted = 1
    d1 d2 d3 kept           emitted: d1 d2 d3 and the bonus token of place 3; num_accepted = 3

Rows that only prefill pass through `verify` for their KV and emit nothing; a row without drafts is a row
with K = 0 whose one token is drawn at place 0. The worker keeps nothing between steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TypeVar

import torch
from msgspec import structs
from torch import Tensor

from paceline.layers.random import Purpose
from paceline.layers.restrictions import MaskProvider
from paceline.layers.sampling import Peaks, SamplingBatch
from paceline.layers.threads import is_short, one_thread
from paceline.plan import RowPlan, RowResult, StepPlan, StepResult, StepTimings
from paceline.runner import batch_inputs
from paceline.runner.batch_inputs import HostBatch
from paceline.runner.model_runner import ModelRunner
from paceline.speculative.acceptance import Acceptance
from paceline.speculative.logprobs import token_logprobs
from paceline.speculative.proposers.base import Proposer, emitting_rows
from paceline.speculative.rejection import Proposal, accept_greedy, accept_likeliest

T = TypeVar("T")

NOT_FINITE = "The model produced NaN or infinite values for this request; it was ended to protect its neighbours."
NOTHING_LEFT = (
    "The request's own restrictions (allowed_token_ids, bad_words, logit_bias, min_tokens or a grammar) leave no token "
    "to sample at this place. Loosen them; the model is not at fault."
)


@dataclass(frozen=True, slots=True)
class _Verified:
    """Logits of the target [L, V]: first those at num_places = K+1 places of each emitting row, then those of scored
    prompt tokens. Where greedy rows need nothing but the peaks nobody looks at them: a handful of views takes as long
    as a layer of a small model.

    finite: which of the plan's rows, emitting or not, stayed finite.
    """

    logits: Tensor
    num_rows: int
    num_places: int
    finite: list[bool]
    peaks: Peaks | None  # [L], if the target's forward has found them

    @property
    def places(self) -> Tensor:
        """[B, K+1, V]"""
        return self.logits[: self.num_rows * self.num_places].view(self.num_rows, self.num_places, -1)

    @property
    def peaks_of_places(self) -> Peaks | None:
        return self.peaks.shaped(self.num_rows, self.num_places) if self.peaks is not None else None

    def of_row(self, index: int) -> Tensor:
        """[K+1, V] of one emitting row."""
        return self.logits[index * self.num_places : (index + 1) * self.num_places]

    def scored_rows(self, plan: StepPlan) -> list[Tensor | None]:
        """Of each of the plan's rows, [its scored tokens, V]; None: it has none."""
        counts = [len(row.scored_token_ids) for row in plan.rows]
        if not any(counts):
            return [None] * len(counts)
        return list(torch.split_with_sizes(self.logits[self.num_rows * self.num_places :], counts))


class SpeculativeDecoder:
    def __init__(
        self,
        target: ModelRunner,
        proposer: Proposer,
        *,
        block_size: int,
        vocab_size: int,
        acceptance: Acceptance | None = None,
        masks: MaskProvider | None = None,
    ) -> None:
        """`vocab_size`: ids that may be emitted; a model's padded rows behind it are masked by being cut off.

        `acceptance`: None is token-wise rejection. `masks` reads the grammars of rows that have one.
        """
        self._target = target
        self._proposer = proposer
        self._block_size = block_size
        self._vocab_size = vocab_size
        self._acceptance = acceptance or Acceptance()
        self._masks = masks

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> StepResult:
        rows = emitting_rows(plan)
        if self._masks is not None:
            self._masks.keep([row.seq_id for row in plan.rows])
        sampling = SamplingBatch(
            rows, self._target.device, masks=self._masks, numbers_by_step=self._acceptance.numbers_by_step
        )
        started = time.perf_counter()
        proposal = self._proposer.propose(plan, sampling)
        proposed = time.perf_counter()
        logits = self._verify(plan, proposal)
        verified = time.perf_counter()
        with one_thread(is_short(logits.logits)):
            results = self._results(plan, proposal, self._accept(sampling, proposal, logits), logits)
        timings = StepTimings(proposed - started, verified - proposed, time.perf_counter() - verified)
        decoding = all(row.emits and len(row.token_ids) == 1 for row in plan.rows)
        return StepResult(step_id=plan.step_id, rows=results, timings=timings, decoding=decoding)

    def _verify(self, plan: StepPlan, proposal: Proposal) -> _Verified:
        """One target pass over chunks and drafts."""
        batch, drafts = self._target_batch(plan, proposal)
        output = self._target.forward(batch.to(self._target.device, drafts)).cut(self._vocab_size)
        finite: list[bool] = output.finite.tolist()
        if not all(finite):
            self._zero_failed(batch, finite)
        num_places = proposal.num_speculative_tokens + 1
        return _Verified(output.logits, len(proposal.num_drafted), num_places, finite, output.peaks)

    def _target_batch(self, plan: StepPlan, proposal: Proposal) -> tuple[HostBatch, Tensor | None]:
        width = proposal.num_speculative_tokens + 1
        num_drafted = _for_all_rows(plan, proposal.num_drafted, 0)
        if proposal.on_host is not None:
            spans = batch_inputs.target_spans(plan, num_drafted, _for_all_rows(plan, proposal.on_host, []))
            return batch_inputs.build(spans, self._block_size, width), None
        tokens = proposal.draft_token_ids
        spans = batch_inputs.target_spans(plan, num_drafted)
        return batch_inputs.build(spans, self._block_size, width), tokens[tokens >= 0]

    def _zero_failed(self, batch: HostBatch, finite: list[bool]) -> None:
        """Wipe what a bad row wrote: NaN in the pool would pass through the masks of later readers."""
        owners = [good for good, length in zip(finite, batch.query_lens, strict=True) for _ in range(length)]
        bad = [slot for slot, good in zip(batch.slot_mapping.tolist(), owners, strict=True) if not good]
        self._target.zero_slots(torch.tensor([*bad, *range(self._block_size)], device=self._target.device))

    def _accept(self, sampling: SamplingBatch, proposal: Proposal, verified: _Verified) -> list[list[int]]:
        """Of each row num_accepted, whether the last token had a law, and the output tokens, padded behind."""
        is_greedy = sampling.all_greedy and not self._acceptance.always_random
        if is_greedy and verified.peaks is not None and sampling.is_unrestricted:
            return accept_likeliest(verified.peaks, proposal)
        law = sampling.law(verified.places, proposal.draft_token_ids, peaks=verified.peaks_of_places)
        if is_greedy:
            return accept_greedy(law, proposal)
        k = proposal.num_speculative_tokens
        u_accept = sampling.uniforms(Purpose.ACCEPT, k)
        outcome = self._acceptance.decide(law, proposal, u_accept, sampling.uniforms(Purpose.TARGET, k + 1))
        columns = [outcome.num_accepted[:, None], outcome.valid[:, None].to(torch.int64), outcome.output_token_ids]
        packed: list[list[int]] = torch.cat(columns, dim=1).tolist()  # the step's one device-to-host copy of tokens
        return packed

    def _results(
        self, plan: StepPlan, proposal: Proposal, packed: list[list[int]], verified: _Verified
    ) -> list[RowResult]:
        emitted = zip(packed, proposal.num_drafted, (partial(verified.of_row, row) for row in count()), strict=False)
        results = []
        for row, good, scored in zip(plan.rows, verified.finite, verified.scored_rows(plan), strict=True):
            result = _emitted(row, *next(emitted), finite=good) if row.emits else _silent(row, finite=good)
            if result.error == NOTHING_LEFT and self._masks is not None and row.sampling.grammar is not None:
                failure = self._masks.failure(row.seq_id)
                result = structs.replace(result, error=failure or NOTHING_LEFT, is_refusal=failure is None)
            if scored is not None:
                scores = token_logprobs(scored, row.scored_token_ids, row.sampling.num_prompt_logprobs)
                result = structs.replace(result, prompt_logprobs=scores or [])
            if row.seq_id in proposal.failed:
                result = structs.replace(result, draft_failed=True)
            results.append(result)
        return results


def _for_all_rows(plan: StepPlan, of_emitting: Seq[T], otherwise: T) -> list[T]:
    values = iter(of_emitting)
    return [next(values) if row.emits else otherwise for row in plan.rows]


def _silent(row: RowPlan, *, finite: bool) -> RowResult:
    """A row that only prefilled."""
    return RowResult(seq_id=row.seq_id, error=None if finite else NOT_FINITE)


def _emitted(
    row: RowPlan, packed: list[int], num_drafted: int, logits: Callable[[], Tensor], *, finite: bool
) -> RowResult:
    """packed: num_accepted, is the last token's law valid, output tokens; logits() [K+1, V] are raw, and seldom
    wanted."""
    num_accepted, valid, *tokens = packed
    output = tokens[: num_accepted + 1]
    error = None if finite and valid else _why(finite, logits()[num_accepted])
    wanted = row.sampling.num_logprobs
    return RowResult(
        seq_id=row.seq_id,
        output_token_ids=output,
        num_accepted=num_accepted,
        num_drafted=num_drafted,
        logprobs=token_logprobs(logits(), output, wanted) if wanted is not None else None,
        error=error,
        is_refusal=error == NOTHING_LEFT,
    )


def _why(finite: bool, logits: Tensor) -> str:
    """Why a row failed whose last place has no law; logits [V] are the raw ones of that place."""
    return NOTHING_LEFT if finite and bool(logits.isfinite().all()) else NOT_FINITE
