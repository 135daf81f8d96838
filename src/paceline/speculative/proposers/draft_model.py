"""DraftModelProposer: a small model runs ahead, one token a forward pass.

The first pass reads each row's draft chunk: along with prefill chunks of rows that do not draft yet, the
last two committed tokens of rows that do (an entry the pool already has goes to the null block), and more
where the draft has fallen behind. Each later pass reads the token just drawn. The last token drawn is not
read: the draft's watermark then lags one behind the target's, and the next first pass makes up for it.

Where a runner can, greedy rows are drafted in one call, pass behind pass, with the same tokens.

The law drawn from is kept as it was used, so the ratio sees the same bits.

Rows whose plan brings drafts from their own text take those, with the one-hot law: nothing was drawn.
"""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.layers.random import Purpose
from paceline.layers.sampling import SamplingBatch, draw
from paceline.layers.threads import is_short, one_thread
from paceline.plan import RowPlan, StepPlan
from paceline.runner import batch_inputs
from paceline.runner.model_runner import ForwardOutput, ModelRunner
from paceline.speculative.proposers.base import emitting_rows
from paceline.speculative.proposers.ngram import legal, looked_up
from paceline.speculative.rejection import Proposal


class DraftModelProposer:
    def __init__(self, runner: ModelRunner, *, block_size: int, vocab_size: int) -> None:
        self._runner = runner
        self._block_size = block_size
        self._vocab_size = vocab_size

    def propose(self, plan: StepPlan, sampling: SamplingBatch) -> Proposal:
        rows = emitting_rows(plan)
        readers = [row for row in plan.rows if row.draft_chunk]
        texts = {index: legal(sampling, index, row.text_drafts) for index, row in enumerate(rows) if row.text_drafts}
        if not readers:
            return looked_up([texts.get(index, []) for index in range(len(rows))], sampling.device)
        if self._in_one_call(rows, readers):
            return self._propose_in_one_call(rows, readers, texts, sampling.device)
        output, failed = self._read_chunks(readers)
        with one_thread(is_short(output.logits)):
            draft = _Draft(rows, texts, sampling, self._vocab_size)
        active = draft.rows_at(0)
        for step in range(max((row.num_model_drafts for row in rows), default=0)):
            with one_thread(is_short(output.logits)):
                tokens = draft.take(step, active, output)
            after = draft.rows_at(step + 1)
            if after:
                output = self._read_tokens([rows[row] for row in after], step, tokens[_places(active, after)])
            active = after
        with one_thread(is_short(output.logits)):
            return draft.proposal(failed)

    def _in_one_call(self, rows: list[RowPlan], readers: list[RowPlan]) -> bool:
        """All drafts of the model are argmaxes of its logits. (Tokens behind `vocab_size` may not be among them.)"""
        runner = self._runner
        return (
            runner.drafts_in_one_call
            and runner.architecture.vocab_size == self._vocab_size
            and any(row.num_model_drafts for row in readers)
            and all(row.sampling.takes_likeliest for row in rows if row.num_model_drafts)
        )

    def _propose_in_one_call(
        self, rows: list[RowPlan], readers: list[RowPlan], texts: dict[int, list[int]], device: torch.device
    ) -> Proposal:
        batch = batch_inputs.build(batch_inputs.draft_chunk_spans(readers), self._block_size).to(self._runner.device)
        drafting = [(place, row) for place, row in enumerate(readers) if row.num_model_drafts]
        output = self._runner.draft_greedily(
            batch,
            [place for place, _ in drafting],
            [row.num_model_drafts for _, row in drafting],
            [row.num_committed_tokens for _, row in drafting],
        )
        failed = {row.seq_id for row, good in zip(readers, output.finite.tolist(), strict=True) if not good}
        drafted: dict[int, list[int]] = {}
        for (_, row), tokens, good in zip(
            drafting, output.token_ids.tolist(), output.has_finite_logits.tolist(), strict=True
        ):
            drafted[row.seq_id] = tokens[: row.num_model_drafts]
            failed |= set() if good else {row.seq_id}
        found = [
            [] if row.seq_id in failed else texts.get(index, drafted.get(row.seq_id, []))
            for index, row in enumerate(rows)
        ]
        return looked_up(found, device, frozenset(failed))

    def _read_chunks(self, readers: list[RowPlan]) -> tuple[ForwardOutput, set[int]]:
        """Logits of the rows that draft, in order, and the sequences whose hidden states went bad."""
        batch = batch_inputs.build(batch_inputs.draft_chunk_spans(readers), self._block_size)
        output = self._runner.forward(batch.to(self._runner.device))
        finite = output.finite.tolist()
        return output.cut(self._vocab_size), {row.seq_id for row, good in zip(readers, finite, strict=True) if not good}

    def _read_tokens(self, rows: list[RowPlan], step: int, token_ids: Tensor) -> ForwardOutput:
        batch = batch_inputs.build(batch_inputs.draft_step_spans(rows, step), self._block_size)
        return self._runner.forward(batch.to(self._runner.device, token_ids)).cut(self._vocab_size)


class _Draft:
    """The tokens and laws of one step, filled column by column."""

    def __init__(
        self, rows: list[RowPlan], texts: dict[int, list[int]], sampling: SamplingBatch, vocab_size: int
    ) -> None:
        """`texts`: drafts of rows, by their index, that are not drawn here."""
        self._rows = rows
        self._num_drafts = [
            len(texts[index]) if index in texts else row.num_draft_tokens for index, row in enumerate(rows)
        ]
        self._sampling = sampling
        width, device = max(self._num_drafts, default=0), sampling.device
        self._token_ids = torch.full((len(rows), width), -1, dtype=torch.int64, device=device)
        self._finite = torch.ones((len(rows), width), dtype=torch.bool, device=device)
        self._has_law = torch.ones((len(rows), width), dtype=torch.bool, device=device)
        self._random_row = {row: place for place, row in enumerate(sampling.random_rows.tolist())}
        self._probs = torch.zeros((len(self._random_row), width, vocab_size), device=device)
        for row, tokens in texts.items():
            self._give(row, torch.tensor(tokens, dtype=torch.int64, device=device))

    def _give(self, row: int, tokens: Tensor) -> None:
        """Tokens [k] that nobody drew."""
        places = torch.arange(len(tokens), device=tokens.device)
        self._token_ids[row, places] = tokens
        if row in self._random_row:
            self._probs[self._random_row[row], places, tokens] = 1.0

    def rows_at(self, step: int) -> list[int]:
        """Those for which the draft model proposes a token there."""
        return [index for index, row in enumerate(self._rows) if row.num_model_drafts > step]

    def take(self, step: int, active: list[int], output: ForwardOutput) -> Tensor:
        """Draw column `step` for the active rows from their logits [A, V]; returns their tokens [A]."""
        sampling, logits = self._sampling.select(active), output.logits
        peaks = output.peaks.shaped(len(active), 1) if output.peaks is not None else None
        law = sampling.law(logits.unsqueeze(1), self._token_ids[active, :step], first_place=step, peaks=peaks)
        tokens = law.argmax[:, 0].clone()
        if law.probs is not None:
            drawn = law.random_rows
            u = sampling.uniforms(Purpose.DRAFT, 1, first_place=step)[drawn, 0]
            tokens[drawn] = draw(law.probs[:, 0], u)
            places = [self._random_row[row] for row in active if row in self._random_row]
            self._probs[places, step] = law.probs[:, 0]
        self._token_ids[active, step] = tokens
        self._has_law[active, step] = law.valid[:, 0]
        highest = logits.amax(-1) if output.peaks is None else output.peaks.values
        self._finite[active, step] = highest.isfinite()  # minus infinity: not in a reduced head
        return tokens

    def proposal(self, failed: set[int]) -> Proposal:
        """Rows whose draft went bad propose nothing; where restrictions leave no token the drafts of a row end."""
        finite = self._finite.all(-1).tolist()
        failed = failed | {row.seq_id for row, good in zip(self._rows, finite, strict=True) if not good}
        lengths = self._has_law.to(torch.int64).cumprod(-1).sum(-1).tolist()
        num_drafted = [
            0 if row.seq_id in failed else min(count, length)
            for row, count, length in zip(self._rows, self._num_drafts, lengths, strict=True)
        ]
        width = max(num_drafted, default=0)
        token_ids = self._token_ids[:, :width]
        if num_drafted != [min(count, width) for count in self._num_drafts]:
            ends = torch.tensor(num_drafted, device=token_ids.device)[:, None]
            token_ids = token_ids.masked_fill(torch.arange(width, device=token_ids.device) >= ends, -1)
        probs = self._probs[:, :width] if self._random_row else None
        return Proposal(token_ids, num_drafted, probs, frozenset(failed))


def _places(active: list[int], after: list[int]) -> list[int]:
    """Where the rows that go on stand among the active ones."""
    where = {row: place for place, row in enumerate(active)}
    return [where[row] for row in after]
