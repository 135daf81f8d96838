"""Is a requests.jsonl all of its run, each request once? What stands there twice, or belongs to nothing, is refused by
its line; what is missing is said, and figures come from whole rounds alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from paceline.bench.serve.records import CaseSpan, Line, Load, Raw, Record, RunHeader

_NAMED = 6
Round = tuple[str, Load, int]


def problem(lines: Sequence[tuple[int, Line]]) -> str:
    """Of numbered lines, the first the header: why they are no run; '' if they are one."""
    header = lines[0][1]
    assert isinstance(header, RunHeader)
    arms = {arm.name for arm in header.arms}
    loads, seeds = header.options.get("loads"), header.options.get("seeds")
    seen: dict[object, int] = {}
    for number, line in lines[1:]:
        if isinstance(line, RunHeader):
            return f"line {number}: a second header; these are two runs, each needs a file of its own"
        where = _words(_round(line))
        if line.arm not in arms:
            return f"line {number}: the arm {line.arm!r} is not among {sorted(arms)} of the header"
        if loads is not None and line.load.label not in loads:
            return f"line {number}: {line.load.label} is not among the loads of the header ({', '.join(loads)})"
        if seeds is not None and not 0 <= line.round < len(seeds):
            return f"line {number}: round {line.round + 1} of a run of {len(seeds)}"
        what, key = (
            (f"request {line.number}" + (f", turn {line.turn}" if line.turn else ""), (line.number, line.turn))
            if isinstance(line, Record)
            else ("the end of the case", ())
        )
        before = seen.setdefault((_round(line), key), number)
        if before != number:
            return f"line {number}: {what} of {where} is there twice (line {before} too)"
    return ""


def whole(raw: Raw) -> tuple[Raw, list[str]]:
    """Without the rounds that lack requests; and in words what was left out, and which rounds are not there."""
    found: list[str] = []
    complete = {_round(span) for span in raw.spans}
    open_ended = Counter(_round(record) for record in raw.records if _round(record) not in complete)
    for place, count in list(open_ended.items())[:_NAMED]:
        found.append(f"{_words(place)}: the case is not over in this file; its {_requests(count)} left out.")
    lacking = dict(_lacking(raw))
    for place, (there, wanted) in list(lacking.items())[:_NAMED]:
        found.append(f"{_words(place)}: {there} of {_requests(wanted)} there. The round is left out.")
    spans = [span for span in raw.spans if _round(span) not in lacking]
    kept = {_round(span) for span in spans}
    if absent := [place for place in _planned(raw.header) if place not in complete]:
        named = "; ".join(_words(place) for place in absent[:_NAMED]) + (" …" if len(absent) > _NAMED else "")
        found.append(f"{len(absent)} of {len(absent) + len(complete)} rounds of the run are not there: {named}.")
    if found:
        found.append("Figures are those of whole rounds, of which the arms may have different ones.")
    return Raw(raw.header, spans, [record for record in raw.records if _round(record) in kept]), found


def _lacking(raw: Raw) -> Iterator[tuple[Round, tuple[int, int]]]:
    """Rounds with fewer requests than they had. Where a file does not say how many (earlier versions), no place in the
    order of prompts may be missing, up to the last one of any round of that load."""
    numbers: dict[Round, list[Record]] = defaultdict(list)
    most: dict[Load, int] = {}
    for record in raw.records:
        numbers[_round(record)].append(record)
        most[record.load] = max(most.get(record.load, 0), record.number + 1)
    for span in raw.spans:
        own = numbers[_round(span)]
        there = len({record.number for record in own}) if span.requests is None else len(own)
        wanted = most.get(span.load, 0) if span.requests is None else span.requests
        if there < wanted:
            yield _round(span), (there, wanted)


def _planned(header: RunHeader) -> Iterator[Round]:
    seeds, loads = header.options.get("seeds"), header.options.get("loads")
    for label in loads or ():
        load = _load(label)
        for number in range(len(seeds or ())):
            yield from ((arm.name, load, number) for arm in header.arms)


def _load(label: str) -> Load:
    value, _, unit = label.partition(" ")
    return Load("rate" if unit == "req/s" else "users", float(value))


def _round(line: Record | CaseSpan) -> Round:
    return line.arm, line.load, line.round


def _words(place: Round) -> str:
    arm, load, number = place
    return f"{arm}, {load.label}, round {number + 1}"


def _requests(count: int) -> str:
    return f"{count} request{' is' if count == 1 else 's are'}"
