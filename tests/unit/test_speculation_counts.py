"""SpeculationCounts: the histogram of accepted drafts says the same as the counters, whatever the drafts' lengths."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from paceline.sequence import SpeculationCounts

STEPS = st.lists(st.integers(0, 5).flatmap(lambda k: st.tuples(st.just(k), st.integers(0, k))), max_size=30)


@given(steps=STEPS, others=STEPS)
def test_p18_the_histogram_counts_steps_by_accepted_drafts(
    steps: list[tuple[int, int]], others: list[tuple[int, int]]
) -> None:
    total = SpeculationCounts()
    for half in (steps, others):
        counts = SpeculationCounts()
        for drafted, accepted in half:
            counts.record(drafted, accepted)
        total.add(counts)
    expected = Counter(accepted for drafted, accepted in steps + others if drafted)
    assert total.acceptance_histogram(5) == [expected[j] for j in range(6)]
    assert sum(total.acceptance_histogram(5)) == total.num_drafts
    assert sum(j * count for j, count in enumerate(total.acceptance_histogram(5))) == total.num_accepted_tokens
