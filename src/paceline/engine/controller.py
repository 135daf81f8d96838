"""SpeculationController: how many drafts every row gets in the next step, decided anew each step.

`decide` weighs what drafts would bring (acceptance_estimates.py) against what they cost (step_costs.py) and takes the
best (goodput.py). It reads nothing but committed outcomes and its own tables: the same outcomes give the same
decisions, and none depends on a random number that is still to be used (architecture.md, invariant 7).

Rest (rests.py). When the best is no draft at all, the draft rests and costs nothing: no pass of it, not even over new
prompts; now and then a probe. A change of load needs no probe: it is in the costs. On a ragged batch single rows rest
and are probed in the same way. While somebody drafts, a plain step is tried now and then instead (plain_trials.py).

Drafts from a request's own text (draft_or_text.py) are weighed last, over what has been decided for the draft model,
and change nothing of its rests and probes: those are about its passes, and a text needs none.

Hysteresis: among captured steps another K must be better by 1 %; going from rest to drafts, by 1 % in any case.
A captured step that no live one has timed yet gets the benefit of the doubt (PaddedCosts.doubt).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Seq
from dataclasses import replace

from paceline.engine.acceptance_estimates import FIRST_GUESS, HIGHEST, AcceptanceEstimates, scaled, steady_survival
from paceline.engine.draft_or_text import with_texts
from paceline.engine.goodput import HORIZON, Choice, DraftingRow, best_ragged, padded_choices, plain, split_choices
from paceline.engine.hearings import Hearings
from paceline.engine.plain_trials import PlainTrials
from paceline.engine.request_spread import RequestSpread
from paceline.engine.rests import (
    EARLY_WAIT,
    LEAST_WAIT,
    MOST_TEXT_WAIT,
    MOST_WAIT,
    PROBE_SHARE,
    Rest,
    RowRests,
    affordable,
)
from paceline.engine.spells import Spells
from paceline.engine.statistics import SpeculationChoices
from paceline.engine.step_costs import PaddedCosts, RaggedCosts, StepCosts
from paceline.engine.tally import Outcome, Reason, Tally

_BETTER = 1.01
_SAME_LOAD = 0.8  # of the rows with which a rest began
_FEW_ROWS = 4  # whose rest may be one request's bad luck
_RECHECK = 8  # steps: a rest is thought over so often, or when rows come or go; thinking costs time as well
_MANY_ROWS = 16  # above, a padded batch is judged by all traffic: its requests are that traffic


class SpeculationController:
    def __init__(self, costs: StepCosts, most: int) -> None:
        """`most`: the K of the configuration."""
        self.costs = costs
        self._costs = costs  # those of steps like the one to decide
        self._tally = Tally(most)
        self.estimates = AcceptanceEstimates(most, turns_together=isinstance(costs, PaddedCosts))
        self._most = most
        self._k = 0  # of the last decision
        self._decided: dict[int, int] = {}
        self._chances: dict[int, float] = {}  # that a row's first draft is kept, as was thought in the last decision
        self._survived: tuple[Seq[DraftingRow], list[list[float]]] | None = None  # of the decision under way
        self._by_text: frozenset[int] = frozenset()
        self._expected: Choice | None = None
        self._under_way: deque[Choice | None] = deque()
        self._rest: Rest | None = None  # None: somebody drafts
        self._next_wait = LEAST_WAIT
        self._drafting_steps = 0
        self._has_returned = False  # from a rest
        self._row_rests = RowRests()
        self._spread = RequestSpread() if isinstance(costs, PaddedCosts) and costs.split_sizes else None
        self._hearings = Hearings()
        self._is_split = False  # the last decision: half of the rows may draft
        self._trials = PlainTrials()
        self._spells = Spells()
        self.reason: Reason | None = None  # why it rests

    # -- before a step ----------------------------------------------------------------------------------

    @property
    def counts(self) -> SpeculationChoices:
        """What was decided and what came of it."""
        return self._tally.choices

    @property
    def is_resting(self) -> bool:
        return self._rest is not None

    @property
    def reads_along(self) -> bool:
        """Should the draft read prompts, for drafts to come?"""
        return self._rest is None

    def drafts(self, seq_id: int) -> int:
        """Of the last decision; 0 for rows that it did not know."""
        return self._decided.get(seq_id, 0)

    def drafts_by_text(self, seq_id: int) -> bool:
        """In the last decision."""
        return seq_id in self._by_text

    def decide(self, rows: Seq[DraftingRow], others: int = 0) -> None:
        """Choose the drafts of a step with these decoding rows; `others`: tokens that other rows read in it."""
        self._expected = None
        self._decided, self._by_text = {}, frozenset()
        if not any(row.most or row.text for row in rows):
            return
        self._costs = self.costs.of(draws=any(row.draws for row in rows))
        probes: dict[int, int] = {}
        choice = plain(rows, self._costs, others)
        is_awake = any(row.most for row in rows) and not self._may_sleep_on(rows)
        if is_awake or any(row.text for row in rows):
            rows = [replace(row, spell=self._spells.expected(row.seq_id)) if row.lag else row for row in rows]
        if is_awake:
            choice, probes = self._decide_for_the_model(rows, others, choice)
        if isinstance(self._costs, RaggedCosts) and any(row.text for row in rows):
            known, rests = self._survived, self._rest is not None
            survivals = known[1] if known is not None and known[0] is rows else self._survivals(rows)
            choice, texts = with_texts(rows, survivals, choice, self._costs, others=others, probes=probes, rests=rests)
            self._by_text = frozenset(rows[index].seq_id for index in texts)
        self._expected = choice
        self._decided = {row.seq_id: count for row, count in zip(rows, choice.counts, strict=True)}

    def _decide_for_the_model(
        self, rows: Seq[DraftingRow], others: int, nobody: Choice
    ) -> tuple[Choice, dict[int, int]]:
        """What the draft model should do, and which rows (by their index) do it for the sake of news. `nobody`: the
        choice in which none does."""
        before = choice = self._choose(rows, others, nobody)
        if not any(choice.counts):
            if self._rest is None and self._trials.goes_first(len(rows), self._costs):
                self._k = 0
                return choice, {}
            if self._rest is None:
                self._start_rest(rows)
            elif self._rest.has_news:
                self._rest.has_news = False
                self._judge_rest(rows)
                if self.reason == "acceptance":
                    self._tally.warn_of_useless_drafts()
            choice = self._probe(rows, choice)
        elif self._rest is not None:
            self._end_rest()
        if self._rest is None:
            choice = self._try_plain(rows, choice, nobody)
        self._k = max(before.counts)
        self._is_split = self._k > 0 and any(row.most and not n for row, n in zip(rows, before.counts, strict=True))
        if self._is_split and isinstance(self._costs, PaddedCosts) and choice is before:
            choice = self._hearings.with_heard(rows, self._survivals(rows), choice, self._costs)
        counts = enumerate(zip(before.counts, choice.counts, strict=True))
        return choice, {index: count for index, (wanted, count) in counts if count != wanted}

    def _may_sleep_on(self, rows: Seq[DraftingRow]) -> bool:
        """It rests, and nothing has happened that could change that."""
        rest = self._rest
        if rest is None or rest.is_probing or (rest.unchecked >= _RECHECK) or len(rows) != rest.num_rows:
            if rest is not None:
                rest.num_rows, rest.unchecked = len(rows), 0
            return False
        rest.unchecked += 1
        return True

    def _choose(self, rows: Seq[DraftingRow], others: int, nobody: Choice) -> Choice:
        """The best; but nobody is sent to rest as long as it may be bad luck, nor called back by good luck alone."""
        survivals = self._survivals(rows)
        self._survived = rows, survivals
        self._chances = {row.seq_id: survival[0] for row, survival in zip(rows, survivals, strict=True)}
        rest = self._rest
        if rest is not None and rest.num_probes and len(rows) >= _SAME_LOAD * rest.begun_with:
            survivals = [self.estimates.wary(survival) for survival in survivals]
        elif self._trials.owes_reading:
            rows = [replace(row, lag=0) for row in rows]
        best = self._best(rows, survivals, others, nobody)
        if self._rest is None and not any(best.counts):
            hopeful = [self.estimates.hopeful(survival) for survival in survivals]
            best = self._best(rows, hopeful, others, nobody)
            if not any(best.counts) and self._is_to_learn(rows):
                return self._least_drafts(rows, survivals)
        return best

    def _is_to_learn(self, rows: Seq[DraftingRow]) -> bool:
        """It is not known yet which half of the rows drafts better, and it would pay if one did as well as it can, at
        this mean; and no draft has much to read first."""
        costs = self._costs
        if self._spread is None or not isinstance(costs, PaddedCosts) or not self._judges_together(len(rows)):
            return False
        able = [row for row in rows if row.most]
        nobody = plain(rows, costs)
        if costs.catch_up(sum(row.lag for row in able)) > PROBE_SHARE * HORIZON * nobody.seconds:
            return False
        if self._spread.knows_enough(row.seq_id for row in able):
            return False
        most_unlike = [steady_survival(min(2.0 * self.estimates.survival(None)[0], HIGHEST), self._most)] * len(rows)
        return any(c.rate > _BETTER * nobody.rate for c in split_choices(rows, most_unlike, costs, self._most).values())

    def _least_drafts(self, rows: Seq[DraftingRow], survivals: Seq[Seq[float]]) -> Choice:
        assert isinstance(self._costs, PaddedCosts)
        choices = padded_choices(rows, survivals, self._costs, self._most)
        return choices[min((k for k in choices if k), default=0)]

    def _best(self, rows: Seq[DraftingRow], survivals: Seq[Seq[float]], others: int, nobody: Choice) -> Choice:
        if isinstance(self._costs, RaggedCosts):
            best = best_ragged(rows, survivals, self._costs, others=others, nobody=nobody)
            return nobody if self._rest is not None and best.rate < _BETTER * nobody.rate else best
        return self._best_padded(rows, survivals, self._costs)

    def _best_padded(self, rows: Seq[DraftingRow], survivals: Seq[Seq[float]], costs: PaddedCosts) -> Choice:
        whole = padded_choices(rows, survivals, costs, self._most)
        choices = {(k, False): choice for k, choice in whole.items()}
        if self._spread is not None and self._judges_together(len(rows)):
            split = split_choices(rows, survivals, costs, self._most)
            choices |= {(k, True): choice for k, choice in split.items()}
        # A rest is begun on evidence alone: nothing is learnt in it.
        doubts = {k: costs.doubt(len(rows), k) if k else 0.0 for k in whole}
        rates = {
            (k, is_split): choice.rate * (1.0 if is_split else 1.0 + doubts[k])
            for (k, is_split), choice in choices.items()
        }
        most = max(rates, key=lambda key: rates[key])
        if most[0] and not self._judges_together(len(rows)):  # drafts pay; how many is worth a step to find out
            for k in whole:
                rates[k, False] = whole[k].rate * (1.0 + costs.first_doubt(len(rows), k)) if k else rates[k, False]
            most = max(rates, key=lambda key: rates[key])
        current = (0, False) if self._rest is not None else (self._k, self._is_split)
        return choices[current if current in rates and rates[most] < _BETTER * rates[current] else most]

    def _survivals(self, rows: Seq[DraftingRow]) -> list[list[float]]:
        if self._judges_together(len(rows)):
            common = self.estimates.survival(None)
            if self._spread is None:
                return [common] * len(rows)
            own = self._spread.rates(row.seq_id for row in rows)
            return [steady_survival(rate, self._most) for rate in own] or [common] * len(rows)
        return [scaled(self.estimates.survival(row.seq_id), row.gain) for row in rows]

    def _judges_together(self, num_rows: int) -> bool:
        """Many rows of one K: their sum is that of all traffic, which they are."""
        return isinstance(self._costs, PaddedCosts) and num_rows > _MANY_ROWS

    # -- rest -------------------------------------------------------------------------------------------

    def _start_rest(self, rows: Seq[DraftingRow]) -> None:
        if self._drafting_steps < MOST_WAIT // 4 and self._has_returned:  # too early, as it turns out
            self._next_wait = min(2 * self._next_wait, MOST_WAIT)
        self._rest = Rest(self._next_wait, begun_with=len(rows))
        self._row_rests.clear()
        self._trials.stop()
        if isinstance(self._costs, PaddedCosts) and len(rows) > _FEW_ROWS:
            self.estimates.pool([row.seq_id for row in rows])  # a probe of some rows must speak for the others
            if self._spread is not None:
                self._spread.forget_all()
        self.estimates.grow_old()
        self._judge_rest(rows)
        if self._next_wait == LEAST_WAIT and (self.reason == "acceptance" or len(rows) <= _FEW_ROWS):
            self._rest.wait = EARLY_WAIT
        self.counts.num_rests[self.reason or "load"] += 1
        self._drafting_steps = 0

    def _end_rest(self) -> None:
        self._rest, self.reason, self._drafting_steps, self._has_returned = None, None, 0, True

    def _judge_rest(self, rows: Seq[DraftingRow]) -> None:
        """Why it rests, as far as is known now. A text may turn at any time; a load that changes needs no probe."""
        assert self._rest is not None
        self.reason = "load" if self._pays_alone(rows) else "acceptance"
        usual = [[FIRST_GUESS ** (place + 1) for place in range(self._most)]] * len(rows)
        self._rest.most_wait = (
            MOST_TEXT_WAIT if any(self._best(rows, usual, 0, plain(rows, self._costs)).counts) else MOST_WAIT
        )

    def _pays_alone(self, rows: Seq[DraftingRow]) -> bool:
        """Would an average request draft if it had the machine to itself?"""
        row = DraftingRow(-1, self._most, sum(row.positions for row in rows) // len(rows))
        survivals = [self.estimates.survival(None)]
        if isinstance(self._costs, RaggedCosts):
            return any(best_ragged([row], survivals, self._costs).counts)
        choices = padded_choices([row], survivals, self._costs, self._most)
        return max(choices.values(), key=lambda choice: choice.rate).counts != [0]

    def _probe(self, rows: Seq[DraftingRow], nobody: Choice) -> Choice:
        rest = self._rest
        assert rest is not None
        if not rest.is_probing:
            rest.probed = affordable(rows, self._costs, nobody.seconds, rest)
            if not rest.probed:
                return nobody
            rest.start_probe()
            self.counts.num_probes += 1
        counts = [min(1, row.most) if row.seq_id in rest.probed else 0 for row in rows]
        return Choice(counts, nobody.tokens, nobody.seconds)

    def _try_plain(self, rows: Seq[DraftingRow], choice: Choice, nobody: Choice) -> Choice:
        """`choice`, or none for the sake of its cost; single rows of a ragged batch may probe."""
        if not any(row.is_fixed for row in rows) and self._trials.wants(rows, choice, nobody, self._costs):
            return nobody
        return self._row_rests.with_probes(rows, choice) if isinstance(self._costs, RaggedCosts) else choice

    # -- behind a step ------------------------------------------------------------------------------------

    def start_step(self) -> None:
        """The last decision became a step."""
        self._under_way.append(self._expected)

    def end_step(
        self,
        outcomes: Seq[Outcome],
        draft_seconds: float,
        other_seconds: float,
        *,
        is_typical: bool,
        captured: bool = False,
    ) -> None:
        """A step is committed. `is_typical`: its rows decoded, all of them, and no draft had to catch up."""
        choice = self._under_way.popleft() if self._under_way else None
        judged_together = self._judges_together(len(outcomes))
        for outcome in outcomes:
            seq_id = None if judged_together else outcome.seq_id
            self._spells.end_step(outcome.seq_id, by_text=outcome.by_text, by_model=outcome.num_made > 0)
            if outcome.num_made:
                if self._spread is not None:
                    tried = min(outcome.num_made, outcome.num_accepted + 1, self._most)
                    self._spread.record(outcome.seq_id, tried, outcome.num_accepted)
                expected = self._chances.get(outcome.seq_id)
                self.estimates.record(seq_id, outcome.num_made, outcome.num_accepted, expected)
        if self.estimates.end_step() and self._spread is not None:
            self._spread.start_anew(self.estimates.survival(None)[0])
        self._tally.add(outcomes, choice, draft_seconds + other_seconds, self.reason)
        if is_typical and outcomes and captured == isinstance(self._costs, PaddedCosts):
            self._refresh(outcomes, draft_seconds, other_seconds)
        self._age_rest(draft_seconds + other_seconds, has_drafted=any(outcome.num_made for outcome in outcomes))
        if self._is_split:
            self._hearings.end_step(draft_seconds + other_seconds)
        self._row_rests.end_step((outcome.seq_id, outcome.num_made > 0) for outcome in outcomes)

    def _refresh(self, outcomes: Seq[Outcome], draft_seconds: float, other_seconds: float) -> None:
        planned = [outcome.planned for outcome in outcomes]
        positions = sum(outcome.positions for outcome in outcomes)
        costs = self.costs.of(draws=any(outcome.draws for outcome in outcomes))
        if isinstance(costs, PaddedCosts):
            costs.refresh(planned, positions, draft_seconds, other_seconds)
        else:
            made = [0 if outcome.by_text else outcome.planned for outcome in outcomes]
            costs.refresh(planned, positions, draft_seconds, other_seconds, made)

    def _age_rest(self, seconds: float, *, has_drafted: bool) -> None:
        rest = self._rest
        if rest is not None:
            rest.end_step(has_drafted=has_drafted)
            if rest.num_probes:
                self._next_wait = rest.wait
            return
        self._trials.end_step(seconds)
        self._drafting_steps += 1
        if self._drafting_steps >= MOST_WAIT // 4:
            self._next_wait = LEAST_WAIT  # it has paid for long enough

    def start_anew(self) -> None:
        """Steps that this object did not plan are behind: those under way are not its own."""
        self._under_way.clear()
        self._decided, self._by_text, self._expected = {}, frozenset(), None

    def forget(self, seq_id: int) -> None:
        """The sequence has ended."""
        self.estimates.forget(seq_id)
        self._row_rests.forget(seq_id)
        self._spells.forget(seq_id)
        self._hearings.forget(seq_id)
        if self._spread is not None:
            self._spread.forget(seq_id)
