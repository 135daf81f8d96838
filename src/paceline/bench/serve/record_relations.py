"""Do the figures of one line of a requests.jsonl fit each other? A run writes none that do not (ask.fill and
counters.py leave out what a server contradicts itself in), so a line that fails here was edited or cut.

What lines say of each other is in wholeness.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from paceline.bench.serve.arrival import LATE_NS
from paceline.bench.serve.counters import counters_problem
from paceline.bench.serve.records import ArmInfo, CaseSpan, Counts, Reads, Record

ENDS_AT_USAGE = ("usage", "share")  # ways of counting whose last count is the server's own total


def record_problem(record: Record, arm: ArmInfo, most_tokens: object) -> str:
    """'' if there is none. `most_tokens`: max_tokens of the run's options, where they say it."""
    return next(_of_record(record, arm, most_tokens), "")


def _of_record(record: Record, arm: ArmInfo, most_tokens: object) -> Iterator[str]:
    if record.error is None and not record.events:
        yield "it neither failed nor has events (when how many tokens came)"
    yield from _of_events(record)
    total, counted = record.completion_tokens, record.num_tokens
    if record.error is None and total is not None:
        if arm.counting in ENDS_AT_USAGE and total != counted:
            yield f"completion_tokens is {total}, and its events end at {counted} tokens"
        if isinstance(most_tokens, int) and total > most_tokens:
            yield f"completion_tokens is {total}, and max_tokens of the run {most_tokens}"
    yield from usage_problems(record)
    if record.speculation is not None:
        yield from counts_problems(record.speculation)
        yield from passes_problems(record.speculation, total)


def _of_events(record: Record) -> Iterator[str]:
    for (earlier, before), (micros, tokens) in pairwise([(0, 0), *record.events]):
        if micros < earlier or tokens <= before:
            yield f"events must rise in time and in tokens, and [{micros}, {tokens}] comes after [{earlier}, {before}]"
    if record.events and record.events[-1][0] > record.end_us:
        yield f"end_us is {record.end_us}, and the last of its events is at {record.events[-1][0]}"


def usage_problems(record: Record) -> Iterator[str]:
    cached, prompt = record.cached_tokens, record.prompt_tokens
    if cached is not None and cached > (prompt or 0):
        yield f"cached_tokens is {cached}, and prompt_tokens {prompt}"


def counts_problems(counts: Counts) -> Iterator[str]:
    """Of one answer, where they are exact."""
    kept, by_place = counts.accepted_tokens, counts.accepted_per_position
    if counts.draft_tokens < counts.drafts:
        yield f"draft_tokens is {counts.draft_tokens}, and drafts, of one token at least, are {counts.drafts}"
    if kept > counts.draft_tokens:
        yield f"accepted_tokens is {kept}, and draft_tokens {counts.draft_tokens}"
    if sum(by_place) != kept and (by_place or kept > counts.drafts):
        yield f"accepted_tokens is {kept}, and accepted_per_position add up to {sum(by_place)}"
    for place, (earlier, later) in enumerate(pairwise([counts.drafts, *by_place])):
        if later > earlier:
            before = "drafts" if place == 0 else f"place {place}"
            yield f"accepted_per_position has {later} at place {place + 1}, and {before} {earlier}"
    if counts.passes is not None and counts.passes < counts.drafts:
        yield f"passes is {counts.passes}, and those of them with drafts are {counts.drafts}"


def passes_problems(counts: Counts, tokens: int | None) -> Iterator[str]:
    """A pass gives one token beside its accepted drafts."""
    if counts.passes is not None and tokens is not None and tokens > counts.passes + counts.accepted_tokens:
        yield (
            f"completion_tokens is {tokens}, and {counts.passes} passes with {counts.accepted_tokens} accepted drafts "
            f"give {counts.passes + counts.accepted_tokens} at most"
        )


def span_problem(span: CaseSpan) -> str:
    """'' if there is none."""
    return next(_of_span(span), "")


def _of_span(span: CaseSpan) -> Iterator[str]:
    if span.end_us < span.start_us:
        yield f"end_us is {span.end_us}, and start_us {span.start_us}"
    if found := counters_problem(span.counters, span.accepted_per_position):
        yield found
    if span.reads is not None:
        yield from _of_reads(span.reads)


def _of_reads(reads: Reads) -> Iterator[str]:
    if reads.own_time + reads.late > reads.count:
        yield f"reads: count is {reads.count}, own_time {reads.own_time} and late {reads.late}"
    if reads.late and reads.longest_lag_us < LATE_NS // 1000:
        yield f"reads: {reads.late} were late, and longest_lag_us is {reads.longest_lag_us}"
