"""CapturedDecoder: propose -> verify -> accept as one CUDA graph, for steps in which every row decodes.

The algorithm is decoder.py's; what differs is that nothing here asks the host anything. All K draft passes, the
target's pass and the decision over every row run as one captured graph per form (step_forms.py: padded rows, K, and
whether all or half of the rows may draft); one copy brings a step's inputs to the device and one brings its tokens
back.

Which steps: every row emits and feeds its target exactly one committed token, and its sampling parameters are those
that the kernels know (`SamplingPlan.is_plain`). Anything else - prefill, penalties, grammars, logprobs - goes to the
eager decoder; the law of a token is the same on both ways. A draft that lags by more than one token reads what it has
missed in an eager pass before the step (catch_up.py).

Geometry, for a row with n committed tokens and K = 3 (x is the last one, w the one before):

    positions       n-2  n-1   n   n+1  n+2
    the draft reads  w    x    d1   d2              w only for its hidden state, unless its KV is missing (lag of one)
    the target reads      x    d1   d2   d3

A row may draft fewer than K: its further places are computed and ignored. Positions that nobody reserved a slot for
have block table entry 0, so what is written there lands in the null block. Rows behind the drafting ones have one
place, as in a step of K = 0.

Two steps may be under way: `submit` the second before the first is `collect`ed. A row of the second that stood in
the first (`RowPlan.source`) finds its n and its last tokens in the carry, which every step leaves on the device, at
the place that it had in that step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Seq
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from paceline.kernels.acceptance import accept
from paceline.kernels.clock import stamp
from paceline.kernels.sampling import ProcessedLaw, draw_seeded, processed_law
from paceline.layers.random import Purpose
from paceline.models.fused import PagedBatch
from paceline.plan import RowPlan, StepPlan, StepResult, StepTimings
from paceline.runner.cuda_graphs import GraphCache, padded_sizes
from paceline.runner.model_runner import ModelRunner
from paceline.speculative.catch_up import catch_up, lags
from paceline.speculative.landing import NUM_STAMPS, Landing, Submitted, places_in
from paceline.speculative.step_inputs import CARRIED, Rows, StepInputs
from paceline.step_forms import LEAST_SPLIT, Form, StepForms

_POOL_MARGIN = 1.05  # the graphs' pool is cut into segments as any other
_BYTES_OF_A_GRAPH = 4 << 20  # its nodes and their arguments in the driver's memory


class CapturedDecoder:
    def __init__(
        self,
        target: ModelRunner,
        draft: ModelRunner | None,
        *,
        block_size: int,
        vocab_size: int,
        max_num_seqs: int,
        max_model_len: int,
        draft_counts: list[int],
        synthetic_rates: tuple[float, ...] = (),
        split_from: int = LEAST_SPLIT,
    ) -> None:
        """`draft_counts`: every K that a step may have; 0 is always captured.

        `synthetic_rates`: acceptance by place for benchmarks (see config); empty: the real test.
        `split_from`: the smallest size with steps in which half of the rows may draft.
        """
        self._target = target
        self._draft = draft
        self._block_size = block_size
        self._vocab_size = vocab_size
        self._device = target.device
        counts = draft_counts if draft is not None else []
        self._forms = StepForms.of(padded_sizes(max_num_seqs), counts, split_from=split_from)
        most = self._forms.draft_counts[-1]
        # Eager passes of these lengths run kernels that are compiled for the captured steps anyway.
        target.short_queries = {k + 1 for k in self._forms.draft_counts}
        if draft is not None:
            draft.short_queries = {1, 2}
        most_ahead = 2 * (most + 1)  # a step that runs ahead is planned for the longest outcome
        width = -(-(max_model_len + most_ahead) // block_size)
        self._inputs = {size: StepInputs(size, width, self._device) for size in self._forms.sizes}
        self._carry = torch.zeros((max_num_seqs, len(CARRIED)), dtype=torch.int32, device=self._device)
        self._rates = _rates(synthetic_rates, most, self._device)
        self._graphs: GraphCache[Tensor] = GraphCache(self._device)
        self._under_way: deque[Submitted] = deque()
        self._results = [Landing(max_num_seqs, most, self._device) for _ in range(2)]
        self._places: Seq[int] = ()  # of the last step's rows

    @torch.inference_mode()
    def capture(self) -> None:
        """Record every form; the largest first, so that its memory serves the others."""
        for form in self._forms.all():
            self._graphs.capture(form, partial(self._step, form), partial(self._trial, form))

    def _trial(self, form: Form) -> None:
        with ExitStack() as stack:
            for runner in filter(None, (self._target, self._draft)):
                stack.enter_context(runner.few_layers())
            self._step(form)

    @torch.inference_mode()
    def measure_bytes(self) -> int:
        """What capturing will take: the peak of the largest step, run once uncaptured, and each graph's own records.

        The pools may be tiny: all rows are padding. A GPU's only.
        """
        torch.cuda.synchronize(self._device)
        before = torch.cuda.memory_allocated(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        self._step(self._forms.all()[0])
        torch.cuda.synchronize(self._device)
        peak = torch.cuda.max_memory_allocated(self._device) - before
        torch.cuda.empty_cache()
        return int(peak * _POOL_MARGIN) + len(self._forms.all()) * _BYTES_OF_A_GRAPH

    def describe(self) -> str:
        return (
            f"{len(self._graphs)} captured in {self._graphs.capture_seconds:.1f} s, "
            f"{self._graphs.capture_bytes / (1 << 20):,.0f} MiB: up to {self._forms.sizes[-1]} sequences, "
            f"K in {{{', '.join(map(str, self._forms.draft_counts))}}}"
        )

    @property
    def forms(self) -> StepForms:
        """What is captured."""
        return self._forms

    # -- one step, seen from the host -----------------------------------------------------------------

    @property
    def num_under_way(self) -> int:
        """Steps submitted and not collected."""
        return len(self._under_way)

    def takes(self, plan: StepPlan) -> bool:
        """Whether the whole step can run captured."""
        if len(plan.rows) > self._forms.sizes[-1] or plan.num_speculative_tokens > self._forms.draft_counts[-1]:
            return False
        return all(self._takes_row(row) for row in plan.rows)

    def _takes_row(self, row: RowPlan) -> bool:
        if not row.emits or not row.sampling.is_plain or row.text_drafts:
            return False
        if row.source is not None:
            return True
        return len(row.token_ids) == 1

    @torch.inference_mode()
    def submit(self, plan: StepPlan) -> bool:
        """Launch the step and return at once. At most two steps may be under way.

        Rows whose draft lags by more than one token are read first, eagerly; True if there were any.
        """
        is_late = any(map(lags, plan.rows))
        if is_late:
            assert self._draft is not None, "only a draft model has chunks to read"
            plan = catch_up(self._draft, plan, self._block_size)
        form = self._form(plan)
        places = places_in(form, plan.rows)
        self._inputs[form.size].fill(plan.rows, places, self._places)
        packed = self._graphs.run(form)
        self._places = places
        self._results.reverse()
        landing = self._results[0]
        landing.take(packed)
        self._under_way.append(Submitted(plan, form, places, landing))
        return is_late

    def _form(self, plan: StepPlan) -> Form:
        num_drafting = sum(row.num_draft_tokens > 0 for row in plan.rows)
        return self._forms.smallest(len(plan.rows), plan.num_speculative_tokens, num_drafting)

    @torch.inference_mode()
    def collect(self) -> StepResult:
        """Wait for the oldest step under way."""
        step = self._under_way.popleft()
        results, stamps = step.read()
        failed = [row for row, result in zip(step.plan.rows, results, strict=True) if result.error is not None]
        if failed:
            self._zero({row.seq_id: row for row in failed if row.seq_id not in step.void})
        a, b, c, d = (stamp / 1e9 for stamp in stamps)
        timings = StepTimings(draft=b - a, verify=c - b, accept=d - c)
        return StepResult(step_id=step.plan.step_id, rows=results, timings=timings, decoding=True, captured=True)

    def is_done(self) -> bool:
        """Has the oldest step under way landed? Asks without waiting."""
        return not self._under_way or self._under_way[0].landing.is_done()

    def release(self) -> None:
        """Give the graphs back; no step may follow."""
        self._under_way.clear()
        self._graphs.clear()

    def run(self, plan: StepPlan) -> StepResult:
        self.submit(plan)
        return self.collect()

    def _zero(self, failed: dict[int, RowPlan]) -> None:
        """Wipe what failed rows wrote: their blocks go to others, and NaN would pass through masks.

        That is done now or never: a step that already runs behind this one has written to the blocks in its own
        table as well, and once this result is known the blocks may be given away.
        """
        tables = {seq_id: row.block_table for seq_id, row in failed.items()}
        for following in self._under_way:
            tables |= {row.seq_id: row.block_table for row in following.plan.rows if row.seq_id in failed}
            following.void.update(failed)
        size = self._block_size
        # The block at the watermark is not full, so nobody shares it; those before it may be in the prefix cache.
        own = [block for seq_id, row in failed.items() for block in tables[seq_id][row.start // size :]]
        slots = [block * size + offset for block in own for offset in range(size)]
        self._target.zero_slots(torch.tensor(slots, dtype=torch.int64, device=self._device))

    # -- one step, on the device -------------------------------------------------------------------------

    def _step(self, form: Form) -> Tensor:
        """Flat int64: [R, 4 + K] as `_accept` has it, then the stamps."""
        stamps = torch.zeros(NUM_STAMPS, dtype=torch.int64, device=self._device)
        stamp(stamps, 0)
        rows = self._inputs[form.size].rows(self._carry)
        geometry = self._geometry(rows, form.k)
        tokens, laws, drafts_valid = self._propose(rows.first(form.drafting), geometry, form.k)
        stamp(stamps, 1)
        logits = self._verify(rows, geometry, tokens, form)
        stamp(stamps, 2)
        packed = self._accept(rows, logits, tokens, laws, drafts_valid, form)
        self._leave_carry(rows, packed)
        stamp(stamps, 3)
        return torch.cat((packed.reshape(-1), stamps))

    def _geometry(self, rows: Rows, k: int) -> _Geometry:
        n = rows.num_tokens.to(torch.int64)
        places = torch.arange(-2, max(k, 1), device=self._device)  # of the drafts: 0 .. K-1; -1: the last committed
        positions = n[:, None] + places
        size = self._block_size
        column = (positions.clamp(min=0) // size).clamp(max=rows.block_tables.shape[1] - 1)
        block = rows.block_tables.to(torch.int64).gather(1, column)
        real = (n[:, None] > 0) & (positions >= 0)
        slots = torch.where(real, block * size + positions % size, 0)
        fed = (rows.num_draft_tokens[:, None] > places.clamp(min=0)) & (positions >= rows.draft_from[:, None])
        return _Geometry(positions, slots, torch.where(fed, slots, 0))

    def _propose(self, rows: Rows, geometry: _Geometry, k: int) -> tuple[Tensor, Tensor | None, Tensor]:
        """Draft tokens [R, K], the laws they were drawn from [R, K, V], and which rows had finite laws [R]."""
        num_rows = rows.num_tokens.shape[0]
        tokens = torch.empty((num_rows, k), dtype=torch.int64, device=self._device)
        valid = torch.ones(num_rows, dtype=torch.bool, device=self._device)
        if k == 0:
            return tokens, None, valid
        assert self._draft is not None
        laws = torch.empty((num_rows, k, self._vocab_size), dtype=torch.float32, device=self._device)
        read = torch.stack((rows.previous_token, rows.last_token), dim=1).to(torch.int64)
        for place in range(k):
            column = 0 if place == 0 else place + 1
            at = slice(column, column + read.shape[1])
            hidden = self._forward(
                self._draft, rows, read, geometry.positions[:num_rows, at], geometry.draft_slots[:num_rows, at],
                rows.ends_at(place),
            )  # fmt: skip
            logits = self._draft.model.scores(hidden.view(num_rows, read.shape[1], -1)[:, -1])[:, : self._vocab_size]
            law = processed_law(logits, rows.temperature, rows.min_p, rows.top_k, rows.top_p, probs=laws[:, place])
            drawn_at = geometry.positions[:num_rows, place + 2].contiguous()
            tokens[:, place] = draw_seeded(law, rows.temperature, rows.seeds, drawn_at, int(Purpose.DRAFT))
            valid &= law.valid
            read = tokens[:, place : place + 1]
        return tokens, laws, valid

    def _verify(self, rows: Rows, geometry: _Geometry, tokens: Tensor, form: Form) -> Tensor:
        """The target's logits [D * (K+1) + R - D, V]: of D rows that may draft at K+1 places, of the rest at one."""
        last = rows.last_token[:, None].to(torch.int64)
        first, places = form.drafting, slice(1, form.k + 2)
        read = torch.cat((last[:first], tokens), dim=1)
        positions, slots = geometry.positions[:first, places], geometry.slots[:first, places]
        kv_lens = rows.ends_at(form.k)
        rest = None
        if first < form.size:
            rest = last[first:], geometry.positions[first:, 1:2], geometry.slots[first:, 1:2]
            kv_lens = torch.cat((kv_lens[:first], rows.ends_at(0)[first:]))
        hidden = self._forward(self._target, rows, read, positions, slots, kv_lens, rest)
        return self._target.model.scores(hidden)[:, : self._vocab_size]

    def _forward(
        self, runner: ModelRunner, rows: Rows, tokens: Tensor, positions: Tensor, slots: Tensor, kv_lens: Tensor,
        rest: tuple[Tensor, Tensor, Tensor] | None = None,
    ) -> Tensor:  # fmt: skip
        """Hidden states of tokens [R, Q] end to end, and behind them of `rest`: tokens, positions and slots [r, 1]."""
        flat = [part.reshape(-1) for part in (tokens, positions, slots)]
        if rest is not None:
            flat = [torch.cat((part, more.reshape(-1))) for part, more in zip(flat, rest, strict=True)]
        token_ids, flat_positions, flat_slots = flat
        batch = PagedBatch(
            token_ids=token_ids,
            # A place beyond the model's length is computed and ignored, but its angles must exist.
            positions=flat_positions.clamp(max=runner.max_positions - 1),
            slots=flat_slots.contiguous(),  # one column alone would be a view
            block_tables=rows.block_tables,
            kv_lens=kv_lens,
            max_query_len=tokens.shape[1],
            num_single=0 if rest is None else rest[0].shape[0],
        )
        return runner.forward_paged(batch)

    def _accept(
        self, rows: Rows, logits: Tensor, tokens: Tensor, laws: Tensor | None, drafts_valid: Tensor, form: Form
    ) -> Tensor:
        """[R, 4 + K] int64: num_drafted (-1: the draft failed), num_accepted, valid, output_token_ids (padding -1)."""
        first, width = form.drafting, form.k + 1

        def wide(values: Tensor) -> Tensor:
            spread = values[:first, None].expand(-1, width).reshape(-1)
            return torch.cat((spread, values[first:])) if first < form.size else spread

        law = processed_law(logits, wide(rows.temperature), wide(rows.min_p), wide(rows.top_k), wide(rows.top_p))
        drafting = rows.first(first)
        num_drafted = torch.where(drafts_valid, drafting.num_draft_tokens, 0)
        packed = self._decide(drafting, law, slice(0, first * width), tokens, num_drafted, laws)
        num_drafted = torch.where(drafts_valid, num_drafted, -1)
        if first < form.size:
            rest = rows.behind(first)
            none = torch.zeros_like(rest.num_draft_tokens)
            short = self._decide(rest, law, slice(first * width, None), tokens.new_empty((len(none), 0)), none, None)
            packed = torch.cat((packed, functional.pad(short, (0, form.k), value=-1)))
            num_drafted = torch.cat((num_drafted, none))
        return torch.cat((num_drafted[:, None], packed), dim=1).to(torch.int64)

    def _decide(
        self, rows: Rows, law: ProcessedLaw, at: slice, tokens: Tensor, num_drafted: Tensor, draft_laws: Tensor | None
    ) -> Tensor:
        """`accept` for rows whose laws lie `at` these places, K + 1 a row."""
        num_rows, k = tokens.shape
        return accept(
            tokens,
            num_drafted,
            law.argmax[at].view(num_rows, k + 1),
            law.valid[at].view(num_rows, k + 1),
            rows.temperature,
            rows.seeds,
            rows.num_tokens,
            probs=law.probs[at].view(num_rows, k + 1, -1),
            draft_probs=draft_laws,
            synthetic_rates=self._rates[rows.seeds & 1, :k] if self._rates is not None else None,
        )

    def _leave_carry(self, rows: Rows, packed: Tensor) -> None:
        """What the next step must know of each row: n, the draft's watermark, the last two tokens."""
        num_accepted = packed[:, 1:2]
        outputs = packed[:, 3:]
        last = outputs.gather(1, num_accepted)
        before = outputs.gather(1, (num_accepted - 1).clamp(min=0))
        previous = torch.where(num_accepted > 0, before, rows.last_token[:, None])
        n = rows.num_tokens[:, None] + num_accepted
        drafted = rows.num_draft_tokens[:, None]
        fed = torch.minimum(n, rows.num_tokens[:, None] + drafted - 1)  # the last draft is never read by the draft
        draft_from = torch.where(drafted > 0, fed, rows.draft_from[:, None])
        carry = torch.cat((n + 1, draft_from, previous, last), dim=1)
        self._carry[: carry.shape[0]].copy_(carry)


def _rates(rates: tuple[float, ...], k: int, device: torch.device) -> Tensor | None:
    """[2, K]: of rows with even and with odd seeds; places behind the last rate use the last rate."""
    return torch.tensor([(list(rates) + [rates[-1]] * k)[:k]] * 2, device=device) if rates else None


@dataclass(frozen=True, slots=True)
class _Geometry:
    """Positions n-2 .. n-1+K of each row, and where target and draft store them; int64 [R, K + 2]."""

    positions: Tensor
    slots: Tensor
    draft_slots: Tensor
