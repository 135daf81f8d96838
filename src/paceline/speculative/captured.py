"""CapturedDecoder: propose -> verify -> accept as one CUDA graph, for steps in which every row decodes.

The algorithm is decoder.py's; what differs is that nothing here asks the host anything. All K draft passes, the
target's pass and the decision over every row run as one captured graph per (padded rows, K); one copy brings a
step's inputs to the device and one brings its tokens back.

Which steps: every row emits and feeds its target exactly one committed token, and its sampling parameters are those
that the kernels know (`SamplingPlan.is_plain`). Anything else - prefill, penalties, grammars, logprobs - goes to the
eager decoder; the law of a token is the same on both ways. A draft that lags by more than one token reads what it has
missed in an eager pass before the step (catch_up.py).

Geometry, for a row with n committed tokens and K = 3 (x is the last one, w the one before):

    positions       n-2  n-1   n   n+1  n+2
    the draft reads  w    x    d1   d2              w only for its hidden state, unless its KV is missing (lag of one)
    the target reads      x    d1   d2   d3

A row may draft fewer than K: its further places are computed and ignored. Positions that nobody reserved a slot for
have block table entry 0, so what is written there lands in the null block.

Two steps may be under way: `submit` the second before the first is `collect`ed. A row of the second that stood in
the first (`RowPlan.source`) finds its n and its last tokens in the carry, which every step leaves on the device.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from paceline.kernels.acceptance import accept
from paceline.kernels.clock import stamp
from paceline.kernels.sampling import draw_seeded, processed_law
from paceline.layers.random import Purpose
from paceline.models.fused import PagedBatch
from paceline.plan import RowPlan, RowResult, StepPlan, StepResult, StepTimings
from paceline.runner.cuda_graphs import GraphCache, padded_sizes
from paceline.runner.model_runner import ModelRunner
from paceline.speculative.catch_up import catch_up, lags
from paceline.speculative.decoder import NOT_FINITE
from paceline.speculative.step_inputs import CARRIED, Rows, StepInputs

_POOL_MARGIN = 1.05  # the graphs' pool is cut into segments as any other
_BYTES_OF_A_GRAPH = 4 << 20  # its nodes and their arguments in the driver's memory
_NUM_STAMPS = 4  # start, drafted, verified, accepted


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
    ) -> None:
        """`draft_counts`: every K that a step may have; 0 is always captured.

        `synthetic_rates`: acceptance by place for benchmarks (see config); empty: the real test.
        """
        self._target = target
        self._draft = draft
        self._block_size = block_size
        self._vocab_size = vocab_size
        self._device = target.device
        self._draft_counts = sorted({0, *draft_counts}) if draft is not None else [0]
        most_ahead = 2 * (self._draft_counts[-1] + 1)  # a step that runs ahead is planned for the longest outcome
        width = -(-(max_model_len + most_ahead) // block_size)
        self._sizes = padded_sizes(max_num_seqs)
        self._inputs = {size: StepInputs(size, width, self._device) for size in self._sizes}
        self._carry = torch.zeros((max_num_seqs, len(CARRIED)), dtype=torch.int32, device=self._device)
        self._rates = _rates(synthetic_rates, self._draft_counts[-1], self._device)
        self._graphs: GraphCache[Tensor] = GraphCache(self._device)
        self._under_way: deque[_Submitted] = deque()
        self._results = [_Landing(max_num_seqs, self._draft_counts[-1], self._device) for _ in range(2)]

    @torch.inference_mode()
    def capture(self) -> None:
        """Record every (padded rows, K); the largest first, so that its memory serves the others."""
        for size in reversed(self._sizes):
            for k in reversed(self._draft_counts):
                self._graphs.capture((size, k), lambda size=size, k=k: self._step(self._inputs[size], k))  # type: ignore[misc]

    @torch.inference_mode()
    def measure_bytes(self) -> int:
        """What capturing will take: the peak of the largest step, run once uncaptured, and each graph's own records.

        The pools may be tiny: all rows are padding. A GPU's only.
        """
        torch.cuda.synchronize(self._device)
        before = torch.cuda.memory_allocated(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        self._step(self._inputs[self._sizes[-1]], self._draft_counts[-1])
        torch.cuda.synchronize(self._device)
        peak = torch.cuda.max_memory_allocated(self._device) - before
        torch.cuda.empty_cache()
        return int(peak * _POOL_MARGIN) + len(self._sizes) * len(self._draft_counts) * _BYTES_OF_A_GRAPH

    def describe(self) -> str:
        return (
            f"{len(self._graphs)} captured in {self._graphs.capture_seconds:.1f} s, "
            f"{self._graphs.capture_bytes / (1 << 20):,.0f} MiB: up to {self._sizes[-1]} sequences, "
            f"K in {{{', '.join(map(str, self._draft_counts))}}}"
        )

    @property
    def shapes(self) -> tuple[list[int], list[int]]:
        """Numbers of rows and of drafts that are captured."""
        return list(self._sizes), list(self._draft_counts)

    # -- one step, seen from the host -----------------------------------------------------------------

    @property
    def num_under_way(self) -> int:
        """Steps submitted and not collected."""
        return len(self._under_way)

    def takes(self, plan: StepPlan) -> bool:
        """Whether the whole step can run captured."""
        if len(plan.rows) > self._sizes[-1] or plan.num_speculative_tokens > self._draft_counts[-1]:
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
        size = next(size for size in self._sizes if size >= len(plan.rows))
        k = next(k for k in self._draft_counts if k >= plan.num_speculative_tokens)
        self._inputs[size].fill(plan.rows)
        packed = self._graphs.run((size, k))
        self._results.reverse()
        landing = self._results[0]
        landing.take(packed)
        self._under_way.append(_Submitted(plan, size, k, landing))
        return is_late

    @torch.inference_mode()
    def collect(self) -> StepResult:
        """Wait for the oldest step under way."""
        step = self._under_way.popleft()
        table, stamps = step.landing.read(step.size, step.k + 4)
        rows = table[: len(step.plan.rows)]
        results = [_result(row, packed) for row, packed in zip(step.plan.rows, rows, strict=True)]
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

    def _step(self, inputs: StepInputs, k: int) -> Tensor:
        """Flat int64: [R, 4 + K] as `_accept` has it, then the stamps."""
        stamps = torch.zeros(_NUM_STAMPS, dtype=torch.int64, device=self._device)
        stamp(stamps, 0)
        rows = inputs.rows(self._carry)
        geometry = self._geometry(rows, k)
        tokens, laws, drafts_valid = self._propose(rows, geometry, k)
        stamp(stamps, 1)
        logits = self._verify(rows, geometry, tokens, k)
        stamp(stamps, 2)
        packed = self._accept(rows, logits, tokens, laws, drafts_valid, k)
        self._leave_carry(rows, packed, k)
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
            hidden = self._forward(self._draft, rows, geometry.positions, geometry.draft_slots, column, read, place)
            logits = self._draft.model.scores(hidden[:, -1])[:, : self._vocab_size]
            law = processed_law(logits, rows.temperature, rows.min_p, rows.top_k, rows.top_p, probs=laws[:, place])
            at = geometry.positions[:, place + 2].contiguous()
            tokens[:, place] = draw_seeded(law, rows.temperature, rows.seeds, at, int(Purpose.DRAFT))
            valid &= law.valid
            read = tokens[:, place : place + 1]
        return tokens, laws, valid

    def _verify(self, rows: Rows, geometry: _Geometry, tokens: Tensor, k: int) -> Tensor:
        """The target's logits at the K+1 places: [R * (K+1), V]."""
        read = torch.cat((rows.last_token[:, None].to(torch.int64), tokens), dim=1)
        hidden = self._forward(self._target, rows, geometry.positions, geometry.slots, 1, read, k)
        return self._target.model.scores(hidden.flatten(0, 1))[:, : self._vocab_size]

    def _forward(
        self, runner: ModelRunner, rows: Rows, positions: Tensor, slots: Tensor, column: int, tokens: Tensor, place: int
    ) -> Tensor:
        """Hidden states [R, Q, D] of tokens [R, Q] at the columns from `column` on, the last of them at n-1+place."""
        num_rows, length = tokens.shape
        batch = PagedBatch(
            token_ids=tokens.reshape(-1),
            # A place beyond the model's length is computed and ignored, but its angles must exist.
            positions=positions[:, column : column + length].clamp(max=runner.max_positions - 1).reshape(-1),
            slots=slots[:, column : column + length].reshape(-1).contiguous(),  # one column alone would be a view
            block_tables=rows.block_tables,
            kv_lens=torch.where(rows.num_tokens > 0, rows.num_tokens + place, 0),
            max_query_len=length,
        )
        return runner.forward_paged(batch).view(num_rows, length, -1)

    def _accept(
        self, rows: Rows, logits: Tensor, tokens: Tensor, laws: Tensor | None, drafts_valid: Tensor, k: int
    ) -> Tensor:
        """[R, 4 + K] int64: num_drafted (-1: the draft failed), num_accepted, valid, output_token_ids (padding -1)."""
        num_rows, width = rows.num_tokens.shape[0], k + 1

        def wide(values: Tensor) -> Tensor:
            return values[:, None].expand(-1, width).reshape(-1)

        law = processed_law(logits, wide(rows.temperature), wide(rows.min_p), wide(rows.top_k), wide(rows.top_p))
        packed = accept(
            tokens,
            torch.where(drafts_valid, rows.num_draft_tokens, 0),
            law.argmax.view(num_rows, width),
            law.valid.view(num_rows, width),
            rows.temperature,
            rows.seeds,
            rows.num_tokens,
            probs=law.probs.view(num_rows, width, -1),
            draft_probs=laws,
            synthetic_rates=self._rates[:k] if self._rates is not None else None,
        )
        num_drafted = torch.where(drafts_valid, rows.num_draft_tokens, -1)
        return torch.cat((num_drafted[:, None], packed), dim=1).to(torch.int64)

    def _leave_carry(self, rows: Rows, packed: Tensor, k: int) -> None:
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
    """[K]; places behind the last rate use the last rate."""
    return torch.tensor((list(rates) + [rates[-1]] * k)[:k], device=device) if rates else None


@dataclass(frozen=True, slots=True)
class _Geometry:
    """Positions n-2 .. n-1+K of each row, and where target and draft store them; int64 [R, K + 2]."""

    positions: Tensor
    slots: Tensor
    draft_slots: Tensor


class _Landing:
    """Where a step's result lands on the host, and the event that says it has."""

    def __init__(self, num_rows: int, k: int, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._host = torch.zeros(num_rows * (k + 4) + _NUM_STAMPS, dtype=torch.int64, pin_memory=self._on_gpu)
        self._event: Any = torch.cuda.Event() if self._on_gpu else None  # type: ignore[no-untyped-call]

    def take(self, packed: Tensor) -> None:
        self._host[: packed.numel()].copy_(packed, non_blocking=True)
        if self._event is not None:
            self._event.record()

    def is_done(self) -> bool:
        return self._event is None or bool(self._event.query())

    def read(self, num_rows: int, width: int) -> tuple[list[list[int]], list[int]]:
        if self._event is not None:
            self._event.synchronize()
        size = num_rows * width
        stamps: list[int] = self._host[size : size + _NUM_STAMPS].tolist()
        table: list[list[int]] = self._host[:size].view(num_rows, width).tolist()
        return table, stamps


@dataclass(frozen=True, slots=True)
class _Submitted:
    plan: StepPlan
    size: int
    k: int
    landing: _Landing
    void: set[int] = field(default_factory=set)  # sequences that failed in the step before


def _result(row: RowPlan, packed: list[int]) -> RowResult:
    num_drafted, num_accepted, valid, *tokens = packed
    return RowResult(
        seq_id=row.seq_id,
        output_token_ids=tokens[: num_accepted + 1],
        num_accepted=num_accepted,
        num_drafted=max(0, num_drafted),
        error=None if valid else NOT_FINITE,
        draft_failed=row.num_draft_tokens > 0 and num_drafted < 0,
    )
