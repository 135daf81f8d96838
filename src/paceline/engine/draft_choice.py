"""DraftChoice: how many tokens each sequence drafts in the next step.

The policy says the most (configuration, request, lengths). A controller lowers it row by row; without one a watch may
forbid all drafts. With `pinned` K neither is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace

from paceline.engine.controller import Outcome, SpeculationController
from paceline.engine.draft_watch import DraftWatch
from paceline.engine.goodput import DraftingRow
from paceline.engine.speculation import SpeculationPolicy
from paceline.plan import RowPlan, StepResult
from paceline.sequence import Sequence

InFlight = dict[int, tuple[Sequence, RowPlan]]  # a step's rows by seq_id, in the plan's order


class DraftChoice:
    def __init__(
        self,
        policy: SpeculationPolicy,
        watch: DraftWatch | None = None,
        controller: SpeculationController | None = None,
    ) -> None:
        self.policy = policy
        self.controller = controller
        self._watch = watch
        self._pinned = False  # K is the policy's for every row: the controller is not asked

    def set_most(self, count: int, *, pinned: bool) -> None:
        self.policy = replace(self.policy, num_speculative_tokens=count)
        self._pinned = pinned
        if self.controller is not None:
            self.controller.start_anew()

    @property
    def _chooser(self) -> SpeculationController | None:
        return None if self._pinned else self.controller

    # -- before a step --------------------------------------------------------------------------------

    def choose(self, running: Seq[Sequence], ahead: Mapping[int, tuple[Sequence, RowPlan]], most_others: int) -> None:
        """Before a step is planned. `ahead`: the step under way, behind which it runs; `most_others`: tokens that rows
        which do not decode may read in it."""
        if self._chooser is None:
            if self._watch is not None:
                self._watch.start_step()
            return
        rows, others = [], 0
        for sequence in running:
            before = ahead[sequence.seq_id][1] if sequence.seq_id in ahead else None
            if before.emits if before else sequence.num_output_tokens and _decodes(sequence):
                rows.append(self._drafting_row(sequence, before))
            else:
                others += sequence.num_tokens - sequence.num_computed_tokens
        self._chooser.decide(rows, min(others, most_others))

    def _drafting_row(self, sequence: Sequence, before: RowPlan | None) -> DraftingRow:
        """`before`: its row in the step under way, behind which the step to choose for runs."""
        most, lag = self.policy.wanted_drafts(sequence), 0
        if self.policy.has_draft_model and (before is None or not before.num_draft_tokens):
            mark = sequence.num_draft_computed_tokens
            if before is not None and before.draft_chunk:
                mark = max(mark, before.draft_start + len(before.draft_chunk))
            lag = max(0, sequence.num_tokens - 2 - mark)
        return DraftingRow(sequence.seq_id, most, sequence.num_tokens, lag, sequence.has_own_seed)

    def wanted(self, sequence: Sequence) -> int:
        wanted = self.policy.wanted_drafts(sequence)
        if self._chooser is not None:
            return wanted if sequence.has_own_seed else min(wanted, self._chooser.drafts(sequence.seq_id))
        return wanted if self._watch is None or self._watch.allows_drafts else 0

    def reads_along(self, sequence: Sequence) -> bool:
        """Should the draft read what it lacks of a row that does not draft in this step?"""
        if self._chooser is None or _decodes(sequence):
            return self.wanted(sequence) > 0
        return (self._chooser.reads_along or sequence.has_own_seed) and self.policy.wanted_drafts(sequence) > 0

    def start_step(self) -> None:
        """What was chosen became a step."""
        if self._chooser is not None:
            self._chooser.start_step()

    # -- behind a step --------------------------------------------------------------------------------

    def end_step(self, in_flight: InFlight, result: StepResult) -> None:
        """The controller learns from rows that decoded. Its costs, from steps of nothing else, none of them late."""
        if self._chooser is None:
            return
        plans = [in_flight[row.seq_id][1] for row in result.rows]
        outcomes = [
            Outcome(row.seq_id, plan.num_draft_tokens, row.num_drafted, row.num_accepted, plan.num_committed_tokens)
            for row, plan in zip(result.rows, plans, strict=True)
            if row.output_token_ids and len(plan.token_ids) == 1
        ]
        is_typical = result.decoding and len(outcomes) == len(plans) and all(len(p.draft_chunk) <= 2 for p in plans)
        timings = result.timings
        self._chooser.end_step(
            outcomes, timings.draft, timings.verify + timings.accept, is_typical=is_typical, captured=result.captured
        )

    def record(self, num_drafted: int, num_accepted: int) -> None:
        """Of one row, for the watch."""
        if self._watch is not None and self._chooser is None:
            self._watch.record(num_drafted, num_accepted)

    def forget(self, seq_id: int) -> None:
        """The sequence has ended."""
        if self.controller is not None:
            self.controller.forget(seq_id)


def _decodes(sequence: Sequence) -> bool:
    return sequence.num_computed_tokens >= sequence.num_tokens - 1
