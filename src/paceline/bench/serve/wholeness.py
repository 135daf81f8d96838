"""Is a requests.jsonl all of its run, each request once? What stands there twice, belongs to nothing or contradicts
another line is refused by its line; what is missing is said, and figures come from whole rounds alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

from paceline.bench.serve.record_relations import record_problem, span_problem
from paceline.bench.serve.records import CaseSpan, Line, Load, Raw, Record, RunHeader

_NAMED = 6
_EDITED = "The file was edited or cut; run it again"
Round = tuple[str, Load, int]


def problem(lines: Sequence[tuple[int, Line]]) -> str:
    """Of numbered lines, the first the header: why they are no run; '' if they are one."""
    header = lines[0][1]
    assert isinstance(header, RunHeader)
    seen = _Seen(header)
    for number, line in lines[1:]:
        if isinstance(line, RunHeader):
            return f"line {number}: a second header; these are two runs, each needs a file of its own"
        if found := seen.foreign(line) or seen.twice(number, line):
            return f"line {number}: {found}"
        if found := seen.contradiction(number, line):
            return f"line {number}: {_named(line)}: {found}. {_EDITED}"
    return next((f"{found}. {_EDITED}" for found in _between(lines)), "")


class _Seen:
    """The lines before, and what the header says of all."""

    def __init__(self, header: RunHeader) -> None:
        self._arms = {arm.name: arm for arm in header.arms}
        self._options = header.options
        self._lines: dict[object, int] = {}
        self._prompts: dict[tuple[Load, int, int], tuple[int, str, int]] = {}

    def foreign(self, line: Record | CaseSpan) -> str:
        loads, seeds = self._options.get("loads"), self._options.get("seeds")
        if line.arm not in self._arms:
            return f"the arm {line.arm!r} is not among {sorted(self._arms)} of the header"
        if loads is not None and line.load.label not in loads:
            return f"{line.load.label} is not among the loads of the header ({', '.join(loads)})"
        if seeds is not None and not 0 <= line.round < len(seeds):
            return f"round {line.round + 1} of a run of {len(seeds)}"
        return ""

    def twice(self, number: int, line: Record | CaseSpan) -> str:
        key = (line.number, line.turn) if isinstance(line, Record) else ()
        before = self._lines.setdefault((_round(line), key), number)
        return "" if before == number else f"{_named(line)} is there twice (line {before} too)"

    def contradiction(self, number: int, line: Record | CaseSpan) -> str:
        if isinstance(line, CaseSpan):
            seeds = self._options.get("seeds")
            if seeds is not None and line.seed != seeds[line.round]:
                return f"seed is {line.seed}, and {seeds[line.round]} in the header"
            return span_problem(line)
        return record_problem(line, self._arms[line.arm], self._options.get("max_tokens")) or self._other(number, line)

    def _other(self, number: int, record: Record) -> str:
        """Every arm is asked the same prompts in the same order."""
        place = (record.load, record.round, record.number)
        prompt, category, before = self._prompts.setdefault(place, (record.prompt, record.category, number))
        if (prompt, category) == (record.prompt, record.category):
            return ""
        return f"prompt is {record.prompt} ({record.category}), and {prompt} ({category}) in line {before}"


def _between(lines: Sequence[tuple[int, Line]]) -> Iterator[str]:
    """Cases against each other, and requests against their case."""
    header = lines[0][1]
    numbered = [(number, line) for number, line in lines if isinstance(line, CaseSpan)]
    records: dict[Round, list[tuple[int, Record]]] = defaultdict(list)
    for number, line in lines:
        if isinstance(line, Record):
            records[_round(line)].append((number, line))
    for number, span in numbered:
        found = _of_case(header, span, records[_round(span)])
        yield from (f"line {number}: {_named(span)}: {problem}" for problem in found)
    numbered.sort(key=lambda entry: entry[1].place)
    for (_, before), (number, span) in pairwise(numbered):
        if span.place == before.place or span.start_us < before.end_us:
            yield (
                f"line {number}: {_named(span)}: it is case {span.place} from {span.start_us} us on, and case "
                f"{before.place} ended at {before.end_us} us"
            )


def _of_case(header: Line, span: CaseSpan, records: Sequence[tuple[int, Record]]) -> Iterator[str]:
    assert isinstance(header, RunHeader)
    asked, there = header.options.get("num_prompts"), len(records)
    for number, record in records:
        end = record.start_us + record.end_us
        if record.start_us < span.start_us or end > span.end_us:
            yield (
                f"it ran from {span.start_us} to {span.end_us} us, and its {_short(record)} (line {number}) from "
                f"{record.start_us} to {end} us"
            )
    if span.requests is not None and there > span.requests:
        yield f"it had {span.requests} requests, and {there} are there"
    is_one_each = asked is not None and not header.options.get("all_turns")
    if span.requests is not None and is_one_each and span.requests != asked:
        yield f"it had {span.requests} requests, and num_prompts of the run is {asked}"
    if there == span.requests and (gap := _gap([record for _, record in records])):
        yield gap
    most = _most_under_way([record for _, record in records])
    if span.load.kind == "users" and most > span.load.value:
        yield f"{most} requests were under way at a time"


def _gap(records: Sequence[Record]) -> str:
    """Prompts and their turns are numbered without a gap."""
    turns: dict[int, set[int]] = defaultdict(set)
    for record in records:
        turns[record.number].add(record.turn)
    for place in range(len(turns)):
        if turns.get(place) != set(range(len(turns.get(place, "")))) or not turns[place]:
            return f"request {place} is not there from its first turn on, and {max(turns)} is"
    return ""


def _most_under_way(records: Sequence[Record]) -> int:
    changes = [(record.start_us, 1) for record in records]
    changes += [(record.start_us + record.end_us, -1) for record in records]
    return max(accumulate(change for _, change in sorted(changes)), default=0)


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


def _named(line: Record | CaseSpan) -> str:
    if isinstance(line, CaseSpan):
        return f"the end of the case of {_words(_round(line))}"
    return f"{_short(line)} of {_words(_round(line))}"


def _short(record: Record) -> str:
    return f"request {record.number}" + (f", turn {record.turn}" if record.turn else "")


def _words(place: Round) -> str:
    arm, load, number = place
    return f"{arm}, {load.label}, round {number + 1}"


def _requests(count: int) -> str:
    return f"{count} request{' is' if count == 1 else 's are'}"
