"""Which clock said when data arrived, and whether this client kept up: in words."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.bench.serve.records import CaseSpan, Reads


def arrival_notes(spans: Sequence[CaseSpan]) -> list[str]:
    """Nothing for runs of earlier versions, which did not record it."""
    by_arm: dict[str, Reads] = {}
    for span in spans:
        if span.reads is not None and span.reads.count:
            by_arm[span.arm] = _sum(by_arm.get(span.arm, Reads()), span.reads)
    stamped = {arm: reads for arm, reads in by_arm.items() if not reads.own_time}
    found = []
    if stamped:
        longest = max(reads.longest_lag_us for reads in stamped.values()) / 1e3
        found.append(
            f"{_whose(stamped, by_arm)}Times of arrival are the kernel's: this client's own delays (at most "
            f"{longest:.1f} ms) are not within them."
        )
    for arm, reads in by_arm.items():
        if reads.own_time:
            share = (
                "" if reads.own_time == reads.count else f" for {reads.own_time:,} of {reads.count:,} pieces of data"
            )
            found.append(
                f"{arm}: times of arrival are this client's own{share}, with its delays within them: the kernel tells "
                "its own for plain connections on Linux."
            )
        if reads.late:
            found.append(
                f"{arm}: {reads.late:,} of {reads.count:,} times this client read more than 10 ms after data had come; "
                "what came meanwhile on one connection has the time of its last part."
            )
    return found


def _whose(some: dict[str, Reads], every: dict[str, Reads]) -> str:
    return "" if len(some) == len(every) else f"{', '.join(some)}: "


def _sum(one: Reads, two: Reads) -> Reads:
    return Reads(
        one.count + two.count,
        one.own_time + two.own_time,
        one.late + two.late,
        max(one.longest_lag_us, two.longest_lag_us),
    )
