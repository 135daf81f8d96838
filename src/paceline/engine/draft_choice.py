"""DraftChoice: how many tokens each sequence drafts in the next step.

The policy says the most (configuration, request, lengths). A controller lowers it row by row; without one a watch may
forbid all drafts of the draft model. With `pinned` K neither is asked.

Where a request's own text may draft for it, `texts` has what was found there. The controller weighs it; without one the
row takes what promises more tokens, and its text where both promise as many, since that costs no pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace

from paceline.engine.acceptance_estimates import AcceptanceEstimates, scaled
from paceline.engine.controller import SpeculationController
from paceline.engine.draft_watch import DraftWatch
from paceline.engine.goodput import DraftingRow
from paceline.engine.speculation import SpeculationPolicy
from paceline.engine.tally import Outcome
from paceline.engine.text_drafts import NOTHING, Found, TextDrafts
from paceline.plan import RowPlan, RowResult, StepResult
from paceline.sequence import Sequence

InFlight = dict[int, tuple[Sequence, RowPlan]]  # a step's rows by seq_id, in the plan's order


class DraftChoice:
    def __init__(
        self,
        policy: SpeculationPolicy,
        watch: DraftWatch | None = None,
        controller: SpeculationController | None = None,
        texts: TextDrafts | None = None,
    ) -> None:
        """`texts`: needed where the policy looks drafts up."""
        self.policy = policy
        self.controller = controller
        self._texts = texts
        self._by_text: set[int] = set()  # of this step
        self._estimates = AcceptanceEstimates(policy.num_speculative_tokens)  # of the draft model, where K is fixed
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
        self._by_text.clear()
        if self._texts is not None:
            self._texts.start_step()
        if self._chooser is None:
            self._choose_texts(running)
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
        self._by_text.update(
            row.seq_id for row in rows if row.text and (row.is_fixed or self._chooser.drafts_by_text(row.seq_id))
        )

    def _choose_texts(self, running: Seq[Sequence]) -> None:
        """Of rows that decode: those whose text is as sure as the draft model."""
        for sequence in running:
            if sequence.num_output_tokens and _decodes(sequence) and (found := self._look_up(sequence)).chances:
                survival = scaled(self._estimates.survival(sequence.seq_id), found.draft_gain)
                if sum(found.chances) >= sum(survival[: self._made(sequence)]):
                    self._by_text.add(sequence.seq_id)

    def _look_up(self, sequence: Sequence) -> Found:
        if self._texts is None:
            return NOTHING
        return self._texts.look_up(sequence, self.policy.wanted_lookups(sequence))

    def _made(self, sequence: Sequence) -> int:
        """Drafts of the draft model, where K is fixed."""
        return self.policy.wanted_drafts(sequence) if self._watch is None or self._watch.allows_drafts else 0

    def _drafting_row(self, sequence: Sequence, before: RowPlan | None) -> DraftingRow:
        """`before`: its row in the step under way, behind which the step to choose for runs."""
        most, lag = self.policy.wanted_drafts(sequence), 0
        if self.policy.has_draft_model and (before is None or not before.num_draft_tokens):
            mark = sequence.num_draft_computed_tokens
            if before is not None and before.draft_chunk:
                mark = max(mark, before.draft_start + len(before.draft_chunk))
            lag = max(0, sequence.num_tokens - 2 - mark)
        found = NOTHING if before is not None else self._look_up(sequence)
        return DraftingRow(
            sequence.seq_id, most, sequence.num_tokens, lag, sequence.has_own_seed, found.chances, found.draft_gain,
            draws=not sequence.sampling.takes_likeliest,
        )  # fmt: skip

    def wanted(self, sequence: Sequence) -> int:
        """Drafts in this step, whatever they come from."""
        text = self.text(sequence)
        if self._chooser is None:
            return len(text) or self._made(sequence)
        if sequence.has_own_seed:
            return len(text) or self.policy.wanted_drafts(sequence)
        chosen = self._chooser.drafts(sequence.seq_id)
        return min(len(text) or self.policy.wanted_drafts(sequence), chosen)

    def text(self, sequence: Sequence) -> list[int]:
        """What its own text drafts for it in this step; []: nothing, or the draft model does."""
        is_chosen = sequence.seq_id in self._by_text
        return self._texts.tokens(sequence.seq_id) if self._texts is not None and is_chosen else []

    @property
    def reads_texts(self) -> bool:
        """The text must be known before the next step can be planned."""
        return self._texts is not None

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
        plans = [in_flight[row.seq_id][1] for row in result.rows]
        if self._texts is not None:
            self._learn(result.rows, plans)
        if self._chooser is None:
            return
        outcomes = [
            Outcome(
                row.seq_id, plan.num_draft_tokens, row.num_drafted, row.num_accepted, plan.num_committed_tokens,
                by_text=bool(plan.text_drafts), draws=not plan.sampling.takes_likeliest,
            )
            for row, plan in zip(result.rows, plans, strict=True)
            if row.output_token_ids and len(plan.token_ids) == 1
        ]  # fmt: skip
        is_typical = result.decoding and len(outcomes) == len(plans) and all(len(p.draft_chunk) <= 2 for p in plans)
        timings = result.timings
        self._chooser.end_step(
            outcomes, timings.draft, timings.verify + timings.accept, is_typical=is_typical, captured=result.captured
        )

    def _learn(self, results: Seq[RowResult], plans: Seq[RowPlan]) -> None:
        """What lookups would have brought, of every row that wanted them; and, where K is fixed, what the draft did."""
        assert self._texts is not None
        for row, plan in zip(results, plans, strict=True):
            estimates = self._chooser.estimates if self._chooser is not None else self._estimates
            self._texts.learn(row, None if plan.text_drafts else estimates.survival(row.seq_id)[0])
            if self._chooser is None and not plan.text_drafts:
                self._estimates.record(row.seq_id, row.num_drafted, row.num_accepted)
        self._estimates.end_step()

    def record(self, num_drafted: int, num_accepted: int) -> None:
        """Of one row that the draft model, or the only proposer, drafted for; for the watch."""
        if self._watch is not None and self._chooser is None:
            self._watch.record(num_drafted, num_accepted)

    def forget(self, seq_id: int) -> None:
        """The sequence has ended."""
        if self.controller is not None:
            self.controller.forget(seq_id)
        if self._texts is not None:
            self._texts.forget(seq_id)
            self._estimates.forget(seq_id)


def _decodes(sequence: Sequence) -> bool:
    return sequence.num_computed_tokens >= sequence.num_tokens - 1
