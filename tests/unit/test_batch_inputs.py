"""From spans to flat arrays: a handful of tokens and many go different ways to the same places."""

from __future__ import annotations

from unittest import mock

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paceline.runner import batch_inputs
from paceline.runner.batch_inputs import HostBatch, Span, build


@st.composite
def spans(draw: st.DrawFn) -> list[Span]:
    found = []
    for row in range(draw(st.integers(1, 4))):
        start, known, to_come = draw(st.integers(0, 20)), draw(st.integers(0, 5)), draw(st.integers(0, 3))
        length = max(1, known + to_come)
        table = [1 + 40 * row + place for place in range(draw(st.integers(1, 35)))]
        found.append(Span(
            table, start, list(range(length - to_come)), num_device_tokens=min(to_come, length),
            write_from=draw(st.integers(0, 25)), num_logits=draw(st.integers(0, min(length, 2))),
        ))  # fmt: skip
    return found


@given(spans=spans(), size=st.sampled_from([1, 4, 16]))
def test_few_tokens_lie_where_many_would(spans: list[Span], size: int) -> None:
    for span in spans:  # every block that is written to or read
        span.block_table.extend(range(200, 200 + -(-(span.start + span.length) // size)))
    few = build(spans, size, 2)
    with mock.patch.object(batch_inputs, "_FEW_TOKENS", 0):
        many = build(spans, size, 2)
    for name in HostBatch.__slots__:
        np.testing.assert_array_equal(getattr(few, name), getattr(many, name))


def test_the_example_of_the_module() -> None:
    batch = build([Span([7, 3], 5, [9], num_device_tokens=2, num_logits=3)], 4, 4)
    assert batch.positions.tolist() == [5, 6, 7]
    assert batch.slot_mapping.tolist() == [13, 14, 15]
    assert batch.logits_indices.tolist() == [0, 1, 2, 2]
    assert batch.device_places.tolist() == [1, 2]
    assert (batch.query_lens, batch.kv_lens) == ([3], [8])
