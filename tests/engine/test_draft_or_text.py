"""The draft model or the text: what is believed of each, who is chosen, and that the engine's books stay right."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from engine.speculation_simulator import cpu_costs
from engine.tagged import TaggedExecutor, make_engine, reference, request, run, tokens
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.engine.curves import Curve
from paceline.engine.draft_or_text import with_texts
from paceline.engine.goodput import DraftingRow, best_ragged
from paceline.engine.ngram_estimates import NgramEstimates
from paceline.engine.step_costs import RaggedCosts
from paceline.engine.text_drafts import TextDrafts
from paceline.prompt_lookup import Match
from paceline.sequence import Sequence


def chances(rate: float, count: int) -> tuple[float, ...]:
    return tuple(rate**place for place in range(1, count + 1))


# -- estimates ----------------------------------------------------------------------------------------


def test_a_longer_match_is_surer_from_the_start() -> None:
    first = [NgramEstimates().survival(1, Match(length, [1]))[0] for length in range(1, 20)]
    assert first == sorted(first)
    assert first[1] < first[3] < first[15]


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_what_is_committed_teaches_whoever_drafted(rate: float) -> None:
    """A request's own rate is found from committed tokens; a stranger knows the average of all traffic."""
    estimates, rng = NgramEstimates(), random.Random(1)
    for _ in range(200):
        estimates.record(1, Match(3, [5]), [5 if rng.random() < rate else 6])
    assert estimates.survival(1, Match(3, [5]))[0] == pytest.approx(rate, abs=0.15)
    assert estimates.survival(2, Match(3, [5]))[0] == pytest.approx(rate, abs=0.15)
    estimates.forget(1)
    assert estimates.survival(1, Match(3, [5])) == estimates.survival(2, Match(3, [5]))


def test_a_text_that_turns_is_believed_soon() -> None:
    estimates = NgramEstimates()
    for _ in range(60):
        estimates.record(1, Match(16, [5] * 5), [5] * 6)
    assert estimates.survival(1, Match(16, [5] * 5))[4] > 0.8
    for _ in range(7):
        estimates.record(1, Match(16, [5] * 5), [6])
    assert estimates.survival(1, Match(16, [5] * 5))[0] < 0.5


@given(
    matches=st.lists(st.tuples(st.integers(1, 20), st.lists(st.booleans(), min_size=1, max_size=6)), max_size=40),
    length=st.integers(1, 20),
)
def test_chances_are_probabilities_that_fall(matches: list[tuple[int, list[bool]]], length: int) -> None:
    estimates = NgramEstimates()
    for own, script in matches:
        estimates.record(1, Match(own, [1] * 6), [1 if won else 2 for won in script])
    found = estimates.survival(1, Match(length, [1] * 6))
    assert all(0.0 < later <= earlier < 1.0 for earlier, later in pairwise(found))


def test_a_text_that_repeats_is_easier_for_the_draft_model_too_and_how_much_is_learnt() -> None:
    estimates = NgramEstimates()
    gains = [estimates.draft_gain(Match(length, [1])) for length in range(1, 20)]
    assert gains == sorted(gains)
    for _ in range(300):
        estimates.record_draft(Match(5, [1]), 0.6, won=False)
    assert estimates.draft_gain(Match(6, [1])) < 0.3
    assert estimates.draft_gain(Match(4, [1])) == gains[3]


# -- the choice ---------------------------------------------------------------------------------------


def choose(rows: list[DraftingRow], rate: float, costs: RaggedCosts) -> tuple[list[int], frozenset[int]]:
    survivals = [list(chances(rate, 7))] * len(rows)
    choice, texts = with_texts(rows, survivals, best_ragged(rows, survivals, costs), costs)
    return choice.counts, texts


def test_the_surer_one_drafts() -> None:
    rows = [DraftingRow(0, 5, text=chances(0.95, 5)), DraftingRow(1, 5, text=chances(0.1, 5)), DraftingRow(2, 5)]
    counts, texts = choose(rows, 0.6, cpu_costs())
    assert texts == {0}
    assert counts[0] == 5
    assert counts[2] > 0


def test_as_sure_a_text_is_preferred_since_it_costs_no_pass() -> None:
    rows = [DraftingRow(0, 5, text=chances(0.7, 5))]
    assert choose(rows, 0.7, cpu_costs())[1] == {0}
    dear = RaggedCosts(Curve([1, 64], [10e-3, 40e-3]), Curve([1, 64], [8e-3, 9e-3]))
    assert choose([DraftingRow(0, 5, text=chances(0.6, 5))], 0.7, dear)[1] == {0}, "passes of the draft are dear"
    free = RaggedCosts(Curve([1, 64], [10e-3, 40e-3]), Curve([1, 64], [0.0, 0.0]))
    assert choose([DraftingRow(0, 5, text=chances(0.6, 5))], 0.7, free)[1] == frozenset()


def test_a_seeded_row_takes_all_of_its_text_whatever_that_costs() -> None:
    dear = RaggedCosts(Curve([1, 64], [1e-3, 64e-3]), Curve([1, 64], [1e-3, 1e-3]))
    rows = [DraftingRow(0, 0, is_fixed=True, text=chances(0.1, 4)), DraftingRow(1, 5)]
    counts, texts = choose(rows, 0.3, dear)
    assert counts[0] == 4
    assert texts == {0}


_ROWS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 5), st.floats(0.02, 0.98), st.integers(0, 40)), min_size=1, max_size=6
)


@settings(max_examples=200, deadline=None)
@given(rows=_ROWS, rate=st.floats(0.02, 0.98), rests=st.booleans(), verify=st.floats(1.0, 60.0))
def test_never_worse_than_without_texts_and_within_limits(
    rows: list[tuple[int, int, float, int]], rate: float, rests: bool, verify: float
) -> None:
    costs = RaggedCosts(Curve([1, 64], [1.0, verify]), Curve([1, 64], [0.1, 0.3]))
    drafting = [
        DraftingRow(index, most, lag=lag, text=chances(own, found))
        for index, (most, found, own, lag) in enumerate(rows)
    ]
    survivals = [list(chances(rate, 5))] * len(rows)
    base = best_ragged(drafting, survivals, costs)
    found, texts = with_texts(drafting, survivals, base, costs, rests=rests)
    assert found.rate >= base.rate
    assert (found, texts) == with_texts(drafting, survivals, base, costs, rests=rests), (
        "the same inputs, the same choice"
    )
    for index, (row, count) in enumerate(zip(drafting, found.counts, strict=True)):
        assert count <= (len(row.text) if index in texts else row.most)
        if index not in texts and rests and texts:
            assert count == 0, "the draft model rests"


# -- in the engine ------------------------------------------------------------------------------------

PERIOD = [11, 12, 13, 14, 15, 16]


def scripted(monkeypatch: pytest.MonkeyPatch, right: int) -> None:
    """Every lookup finds five tokens, the first `right` of which are those to come."""

    def find(texts: TextDrafts, sequence: Sequence, count: int) -> Match | None:
        true = reference(sequence.token_ids, count, eos=None) if count else []
        return Match(6, true[:right] + [(token + 1) % 50 for token in true[right:]]) if true else None

    monkeypatch.setattr(TextDrafts, "_find", find)


@pytest.mark.parametrize("adaptive", [False, True])
def test_a_sure_text_drafts_and_the_draft_model_makes_no_pass(monkeypatch: pytest.MonkeyPatch, adaptive: bool) -> None:
    scripted(monkeypatch, right=5)
    executor = TaggedExecutor(num_blocks=200, accepts=lambda row, place: place < 1)
    engine = make_engine(executor, k=5, costs=cpu_costs() if adaptive else None, lookups=True)
    for name in range(3):
        engine.add_request(request(str(name), [name, *PERIOD], max_tokens=40, ignore_eos=True))
    results = run(engine)
    for name in range(3):
        assert tokens(results[f"{name}/0"]) == reference([name, *PERIOD], 40, eos=None)
    counts = engine.stats().speculation.by_proposer
    assert counts["ngram"].num_drafts >= 3 * 5
    assert counts["ngram"].num_accepted_tokens >= 0.95 * counts["ngram"].num_draft_tokens
    assert counts["draft"].num_drafts <= 3 * 3
    own = results["0/0"][-1].speculation
    assert own is not None
    assert own.by_proposer["ngram"].num_drafts > 0


@pytest.mark.parametrize("adaptive", [False, True])
def test_a_useless_text_is_left_to_the_draft_model(monkeypatch: pytest.MonkeyPatch, adaptive: bool) -> None:
    scripted(monkeypatch, right=0)
    executor = TaggedExecutor(num_blocks=200)
    engine = make_engine(executor, k=5, costs=cpu_costs() if adaptive else None, lookups=True, max_model_len=300)
    engine.add_request(request("a", PERIOD, max_tokens=200, ignore_eos=True))
    assert tokens(run(engine)["a/0"]) == reference(PERIOD, 200, eos=None)
    counts = engine.stats().speculation.by_proposer
    assert counts["ngram"].num_drafts <= 12, "learnt within a few steps"
    assert counts["draft"].num_drafts >= 25


@pytest.mark.parametrize("adaptive", [False, True])
def test_p38_past_the_drafts_length_or_with_a_failed_draft_the_text_goes_on(
    monkeypatch: pytest.MonkeyPatch, adaptive: bool
) -> None:
    scripted(monkeypatch, right=3)
    executor = TaggedExecutor(num_blocks=200)
    costs = cpu_costs() if adaptive else None
    engine = make_engine(executor, k=5, costs=costs, lookups=True, max_model_len=120, draft_max_len=20)
    engine.add_request(request("a", PERIOD, max_tokens=90, ignore_eos=True))
    assert tokens(run(engine)["a/0"]) == reference(PERIOD, 90, eos=None)
    late = [
        row for plan in executor.plans for row in plan.rows if row.num_committed_tokens > 30 and row.num_draft_tokens
    ]
    assert len(late) > 5
    assert all(row.text_drafts for row in late)


def test_each_request_gets_the_proposer_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, right=4)
    executor = TaggedExecutor(num_blocks=200, accepts=lambda row, place: False)
    engine = make_engine(executor, k=5, costs=cpu_costs(), lookups=True)
    named = {"draft": "draft", "ngram": "ngram", "auto": "auto", "seeded": "auto", "seeded ngram": "ngram"}
    for name, proposer in named.items():
        own: dict[str, object] = {"seed": 1, "temperature": 0.5} if name.startswith("seeded") else {}
        engine.add_request(
            request(name, PERIOD, max_tokens=30, ignore_eos=True, speculation={"proposer": proposer}, **own)
        )
    run(engine)
    order = {index + 1: name for index, name in enumerate(named)}
    by_text: dict[str, set[bool]] = {name: set() for name in named}
    for row in (row for plan in executor.plans for row in plan.rows):
        if row.num_draft_tokens:
            by_text[order[row.seq_id]].add(bool(row.text_drafts))
        if order[row.seq_id] in ("ngram", "seeded ngram"):
            assert not row.draft_chunk, "the draft model never reads what it will not draft for"
    assert by_text["draft"] == by_text["seeded"] == {False}, "a seeded text must not depend on what was learnt"
    assert by_text["ngram"] == by_text["seeded ngram"] == {True}
    assert True in by_text["auto"]
    seeded = [
        row.num_draft_tokens for plan in executor.plans for row in plan.rows if order[row.seq_id] == "seeded ngram"
    ]
    assert set(seeded[2:-3]) == {5}, "nor on costs"


def test_nobody_asks_nothing_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(*arguments: object) -> None:
        raise AssertionError("looked up")

    monkeypatch.setattr("paceline.prompt_lookup.SearchableText.match", find)
    engine = make_engine(TaggedExecutor(num_blocks=200), k=5, lookups=True)
    engine.add_request(request("a", PERIOD, max_tokens=20, speculation={"proposer": "draft"}))
    engine.add_request(request("b", PERIOD, max_tokens=20, speculation={"num_speculative_tokens": 0}))
    run(engine)
