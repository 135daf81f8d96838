"""Scheduler: who computes what in the next step, and what the step's result means.

There is no prefill phase and no decode phase. A sequence has committed tokens whose KV is not yet
computed; each step lets the watermarks catch up, and a sequence that reaches its last committed token
emits. Only then may tokens be drafted behind it.

schedule() -> StepPlan
  1. Running sequences, oldest first. Every one gets at least one token: the budget holds one token back
     for each of those still to come, so drafts and long chunks never starve a neighbour.
  2. Waiting sequences, by priority and then in order of arrival, while a place, budget and blocks for the whole
     prompt are there.
  When blocks run out a row first gives up its drafts, then the youngest running sequence is preempted:
  its blocks go back, its committed tokens stay, it waits at the front of its priority.
plan_ahead() -> StepPlan
  The step after the one under way, made before its result is known, so that the device never waits for the host.
  Only rows that were decoding: their last tokens are unknown here and known on the device (`RowPlan.source`).
commit(StepResult) -> the sequences' news
  Rejected drafts need no roll-back: the watermark does not move over their slots.

Watermarks after a row with n committed tokens drafted k and accepted a: the target has n + a positions,
the draft min(n + a, n + k - 1), because the last draft is never fed to the draft itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from paceline.engine.block_manager import BlockManager
from paceline.engine.draft_choice import DraftChoice, InFlight
from paceline.engine.row_planning import Budget, RowPlanner, ahead, known
from paceline.engine.stopping import find_ending
from paceline.plan import RowPlan, RowResult, StepPlan, StepResult, TokenLogprobs
from paceline.sequence import FinishReason, Sequence, SequenceStatus


@dataclass(frozen=True, slots=True)
class Update:
    """What one step did to one sequence."""

    sequence: Sequence
    token_ids: list[int]
    num_drafted: int = 0
    num_accepted: int = 0
    by_text: bool = False  # its drafts were looked up in the text
    logprobs: list[TokenLogprobs] | None = None
    error: str | None = None
    is_refusal: bool = False  # the error is the request's own


class Scheduler:
    def __init__(
        self,
        blocks: BlockManager,
        drafts: DraftChoice,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        keep_history: bool = False,
    ) -> None:
        """`keep_history`: rows carry all committed tokens, for proposers that read text."""
        self.blocks = blocks
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.num_preemptions = 0
        self.drafts = drafts
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._keep_history = keep_history
        self._planner = RowPlanner(drafts, keep_history=keep_history)
        self._under_way: deque[InFlight] = deque()  # steps submitted and not committed, at most two
        self._step_id = 0

    def add(self, sequence: Sequence) -> None:
        self._wait(sequence)

    def _wait(self, sequence: Sequence, *, is_first: bool = False) -> None:
        """Behind those of its priority, or before them; always behind those of a better one."""
        place = len(self.waiting)
        while place and (
            self.waiting[place - 1].priority > sequence.priority
            or (is_first and self.waiting[place - 1].priority == sequence.priority)
        ):
            place -= 1
        self.waiting.insert(place, sequence)

    def set_num_speculative_tokens(self, count: int, *, pinned: bool = True) -> None:
        """K from the next plan on, or with `pinned` false the most that the controller may choose; a plan under way
        keeps its own."""
        self.drafts.set_most(count, pinned=pinned)

    def has_unfinished(self) -> bool:
        return bool(self.waiting or self.running or self._under_way)

    @property
    def num_under_way(self) -> int:
        """Steps planned and not committed."""
        return len(self._under_way)

    # -- schedule -----------------------------------------------------------------------------------

    def schedule(self) -> StepPlan | None:
        """Plan the next step; None when nothing can run."""
        assert not self._under_way, "the previous step has not been committed"
        self.drafts.choose(self.running, {}, self._max_num_batched_tokens)
        budget = Budget(self._max_num_batched_tokens, self._max_num_batched_tokens)
        rows: dict[int, RowPlan] = {}
        preempted = self._plan_running(rows, budget)
        if not preempted:
            self._admit_waiting(rows, budget)
        if not rows:
            return None
        planned = {s.seq_id: s for s in self.running if s.seq_id in rows}
        return self._start([(planned[seq_id], row) for seq_id, row in rows.items()])

    def _start(self, rows: list[tuple[Sequence, RowPlan]]) -> StepPlan:
        self._under_way.append({row.seq_id: (sequence, row) for sequence, row in rows})
        self.drafts.start_step()
        self._step_id += 1
        return StepPlan(step_id=self._step_id, rows=[row for _, row in rows])

    # -- plan ahead -----------------------------------------------------------------------------------

    def plan_ahead(self) -> StepPlan | None:
        """Plan the step after the only one under way; None: its result must be known first.

        Blocks are reserved for the longest outcome. A sequence that is sure to end with the step under way is left
        out; one that turns out to have ended is computed once more for nothing, and its row is dropped at commit.
        """
        if len(self._under_way) != 1 or self._can_admit() or self.drafts.reads_texts:
            return None
        if not all(row.emits for _, row in self._under_way[0].values()):
            return None
        self.drafts.choose(self.running, self._under_way[0], self._max_num_batched_tokens)
        rows = []
        for place, (sequence, row) in enumerate(self._under_way[0].values()):
            if sequence.status is not SequenceStatus.RUNNING or sequence.num_remaining_tokens <= 1:
                continue
            following = self._row_ahead(sequence, row, place)
            if following is None:
                return None
            rows.append((sequence, following))
        return self._start(rows) if rows else None

    def _row_ahead(self, sequence: Sequence, row: RowPlan, place: int) -> RowPlan | None:
        """The row that follows `row`; None: the draft must catch up first, or the blocks do not suffice."""
        least, most = row.num_committed_tokens + 1, row.num_committed_tokens + row.num_draft_tokens + 1
        limit = self.drafts.policy.draft_limit(sequence)
        drafts = max(0, min(self.drafts.wanted(sequence), limit - least))
        if self.drafts.policy.has_draft_model and drafts and not row.num_draft_tokens:
            return None
        if not self.blocks.reserve(sequence, most + drafts):
            return None
        return ahead(sequence, row, place, drafts=drafts, limit=limit)

    def _plan_running(self, rows: dict[int, RowPlan], budget: Budget) -> bool:
        before = self.num_preemptions
        to_come = len(self.running)
        for sequence in list(self.running):
            to_come -= 1
            if sequence.status is not SequenceStatus.RUNNING:
                continue  # preempted for the sake of an older one
            held_back = to_come + (1 if self._can_admit() else 0)
            row = self._plan_row(sequence, budget, max(1, budget.target - held_back))
            if row is not None:
                rows[sequence.seq_id] = row
        return self.num_preemptions > before

    def _can_admit(self) -> bool:
        return bool(self.waiting) and len(self.running) < self._max_num_seqs

    def _plan_row(self, sequence: Sequence, budget: Budget, allowed: int) -> RowPlan | None:
        """Plan one running sequence within `allowed` target tokens, preempting others if it must."""
        chunk = min(sequence.num_tokens - sequence.num_computed_tokens, allowed)
        if sequence.wants_prompt_logprobs:
            chunk = min(chunk, max(1, budget.scored))
        end = sequence.num_computed_tokens + chunk
        while not self.blocks.reserve(sequence, end):
            victim = self._preempt_youngest()
            if victim is sequence:
                return None
        drafts = min(self._planner.drafts_behind(sequence, end, budget), allowed - chunk)
        if not self.blocks.reserve(sequence, end + drafts):
            drafts = min(drafts, self.blocks.capacity(sequence) - end)
        return self._planner.row(sequence, end, drafts, budget)

    def _admit_waiting(self, rows: dict[int, RowPlan], budget: Budget) -> None:
        while self._can_admit() and budget.target > 0:
            sequence = self.waiting[0]
            # Every running sequence may need a block soon: without room for that the newcomer would be
            # preempted at once, and let in and preempted again.
            match = self.blocks.admit(sequence, sequence.num_tokens, headroom=len(self.running))
            if match is None:
                return
            self.waiting.popleft()
            if sequence.num_preemptions == 0:
                sequence.num_cached_tokens = match.num_computed_tokens
            sequence.status = SequenceStatus.RUNNING
            self.running.append(sequence)
            row = self._plan_row(sequence, budget, budget.target)
            assert row is not None, "an admitted sequence has its blocks"
            rows[sequence.seq_id] = row

    def _preempt_youngest(self) -> Sequence:
        victim = self.running.pop()
        self.blocks.release(victim)
        victim.status = SequenceStatus.WAITING
        victim.num_preemptions += 1
        self.num_preemptions += 1
        self._wait(victim, is_first=True)
        return victim

    # -- commit ---------------------------------------------------------------------------------------

    def commit(self, result: StepResult) -> list[Update]:
        """Advance watermarks, append tokens, publish full blocks, let go of what has ended."""
        updates = []
        in_flight = self._under_way.popleft()
        self.drafts.end_step(in_flight, result)
        for row_result in result.rows:
            entry = in_flight.pop(row_result.seq_id, None)
            if entry is None or entry[0].status is not SequenceStatus.RUNNING:
                continue  # aborted while the step was under way
            sequence, plan = entry
            updates.append(self._commit_row(sequence, plan, row_result))
        assert not in_flight, f"the result lacks rows of sequences {sorted(in_flight)}"
        self.running = [s for s in self.running if s.status is SequenceStatus.RUNNING]
        for following in self._under_way:
            for seq_id, (sequence, plan) in following.items():
                if sequence.status is SequenceStatus.RUNNING:
                    following[seq_id] = (sequence, known(sequence, plan))
        return updates

    def _commit_row(self, sequence: Sequence, plan: RowPlan, result: RowResult) -> Update:
        if result.error is not None:
            self._end(sequence, FinishReason.ERROR)
            return Update(sequence, [], error=result.error, is_refusal=result.is_refusal)
        self._advance_over_chunk(sequence, plan, result)
        if plan.scored_token_ids:  # after a preemption some of them are known already
            sequence.prompt_logprobs += result.prompt_logprobs[len(sequence.prompt_logprobs) - plan.start :]
        num_kept = self._append(sequence, plan, result) if plan.emits else 0
        self.blocks.publish(sequence)
        if sequence.finish_reason is not None:
            self._end(sequence, sequence.finish_reason)
        num_accepted = min(result.num_accepted, num_kept)
        logprobs = result.logprobs[:num_kept] if result.logprobs is not None else None
        by_text = self._is_by_text(plan)
        kept = result.output_token_ids[:num_kept]
        return Update(sequence, kept, result.num_drafted, num_accepted, by_text, logprobs)

    def _is_by_text(self, plan: RowPlan) -> bool:
        return bool(plan.text_drafts) or self._keep_history

    def _advance_over_chunk(self, sequence: Sequence, plan: RowPlan, result: RowResult) -> None:
        sequence.num_computed_tokens = plan.num_committed_tokens
        if result.draft_failed:
            sequence.draft_failed = True
        elif plan.draft_chunk:
            draft_end = plan.draft_start + len(plan.draft_chunk)
            sequence.num_draft_computed_tokens = max(sequence.num_draft_computed_tokens, draft_end)

    def _append(self, sequence: Sequence, plan: RowPlan, result: RowResult) -> int:
        """Append the step's tokens as far as the sequence goes; return how many were kept."""
        n = sequence.num_tokens
        ending = find_ending(sequence, result.output_token_ids)
        sequence.token_ids.extend(result.output_token_ids[: ending.num_kept])
        num_accepted = min(result.num_accepted, ending.num_kept)
        sequence.speculation.num_passes += 1
        sequence.speculation.record(result.num_drafted, num_accepted, by_text=self._is_by_text(plan))
        if not plan.text_drafts:
            self.drafts.record(result.num_drafted, result.num_accepted)
        # With nothing emitted the last token is computed again in the next step, which then emits.
        sequence.num_computed_tokens = min(n + num_accepted, max(sequence.num_tokens - 1, 0))
        made = 0 if plan.text_drafts else result.num_drafted
        if self.drafts.policy.has_draft_model and made and not result.draft_failed:
            fed = n + made - 1
            sequence.num_draft_computed_tokens = min(n + num_accepted, fed, sequence.num_tokens - 1)
        sequence.num_draft_computed_tokens = min(sequence.num_draft_computed_tokens, sequence.num_tokens - 1)
        sequence.finish_reason, sequence.stop_reason = ending.finish_reason, ending.stop_reason
        return ending.num_kept

    # -- ends -----------------------------------------------------------------------------------------

    def abort(self, request_id: str) -> list[Sequence]:
        """End every sequence of a request, running, waiting or in flight; its blocks are free at once."""
        aborted = [s for s in self._live() if s.request_id == request_id]
        for sequence in aborted:
            self._end(sequence, FinishReason.ABORT)
        self.waiting = deque(s for s in self.waiting if s.status is SequenceStatus.WAITING)
        self.running = [s for s in self.running if s.status is SequenceStatus.RUNNING]
        return aborted

    def _live(self) -> Iterator[Sequence]:
        yield from self.running
        yield from self.waiting

    def _end(self, sequence: Sequence, reason: FinishReason) -> None:
        sequence.finish_reason = reason
        sequence.status = SequenceStatus.FINISHED
        self.drafts.forget(sequence.seq_id)
        self.blocks.release(sequence)

    def check_integrity(self) -> None:
        """Raise AssertionError unless tables, watermarks and queues agree. For tests, after every step."""
        self.blocks.check_integrity(self._live())
        assert len(self.running) <= self._max_num_seqs
        assert all(s.status is SequenceStatus.RUNNING for s in self.running)
        assert all(s.status is SequenceStatus.WAITING and not s.block_table for s in self.waiting)
        assert len({s.seq_id for s in self._live()}) == len(self.running) + len(self.waiting)
