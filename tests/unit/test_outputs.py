"""OutputBuilder: deltas to a RequestOutput."""

from __future__ import annotations

from server_fakes import FakeTokenizer

from paceline.outputs import OutputBuilder, logprobs_by_id
from paceline.plan import TokenLogprobs
from paceline.sampling_params import SamplingParams
from paceline.sequence import FinishReason, SequenceDelta, SpeculationCounts


def delta(index: int = 0, **fields: object) -> SequenceDelta:
    return SequenceDelta(request_id="r", index=index, **fields)  # type: ignore[arg-type]


def test_answers_are_collected_by_index_and_times_by_the_clock() -> None:
    ticks = iter((1.0, 2.0, 3.0))
    builder = OutputBuilder("r", "p", [4], SamplingParams(n=2), FakeTokenizer(), clock=lambda: next(ticks))
    builder.add(delta(1, token_ids=[5, 6], text="ab", num_cached_tokens=16))
    builder.add(delta(0, token_ids=[7], text="c"))
    builder.add(
        delta(
            1,
            text="d",
            finish_reason=FinishReason.STOP,
            stop_reason="d",
            speculation=SpeculationCounts(1, 5, 2, [1, 1]),
        )
    )
    assert not builder.output.finished
    builder.add(delta(0, finish_reason=FinishReason.ABORT, speculation=SpeculationCounts(1, 5, 1, [1])))
    output = builder.output
    assert [(a.index, a.text, a.token_ids) for a in output.outputs] == [(0, "c", [7]), (1, "abd", [5, 6])]
    assert (output.outputs[1].finish_reason, output.outputs[1].stop_reason) == ("stop", "d")
    assert output.finished
    metrics = output.metrics
    assert (metrics.arrival_time, metrics.first_token_time, metrics.finished_time) == (1.0, 2.0, 3.0)
    assert metrics.num_cached_tokens == 16
    assert metrics.speculative_decoding == SpeculationCounts(2, 10, 3, [2, 1])


def test_the_emitted_token_is_always_among_its_logprobs() -> None:
    entry = TokenLogprobs(-3.0, 7, [4, 5], [-0.1, -0.2])
    found = logprobs_by_id(9, entry, str)
    assert [(t, p.rank, p.decoded_token) for t, p in found.items()] == [(4, 1, "4"), (5, 2, "5"), (9, 7, "9")]
    assert list(logprobs_by_id(4, entry, str)) == [4, 5]
