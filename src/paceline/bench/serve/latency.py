"""What a record says, and in which words.

    TTFT  start of the request to the first time that tokens came
    E2E   start to the last time that tokens came
    TPOT  (E2E - TTFT) / (tokens - 1): the pace of one answer; none for an answer of one token
    ITL   one value a token after the first: if a chunk brings n tokens after a gap, n values of gap / n; the other
          tokens of the first chunk have 0. So its mean over an answer is TPOT, whatever the chunks are (p40)
    gap   time between two chunks: what a reader sees as a pause
    interactivity  1000 / median TPOT in ms: tokens a second that one user gets

All in milliseconds. Throughput counts tokens by the time they came, within the window in which every user had a
request under way: the end of a case, where users have run out of prompts, is no load of so many users. Over several
rounds it is all their tokens over all their seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from paceline.bench.serve.intervals import SLICES, Slices
from paceline.bench.serve.records import CaseSpan, Record

Values = npt.NDArray[np.float64]
METRICS = ("ttft", "tpot", "itl", "gap", "e2e")


def ttft(record: Record) -> float:
    return record.events[0][0] / 1e3


def e2e(record: Record) -> float:
    return record.events[-1][0] / 1e3


def tpot(record: Record) -> float | None:
    later = record.num_tokens - 1
    return (e2e(record) - ttft(record)) / later if later > 0 else None


def gaps(record: Record) -> list[float]:
    return [(later - earlier) / 1e3 for (earlier, _), (later, _) in pairwise(record.events)]


def itl(record: Record) -> list[float]:
    found = [0.0] * (record.events[0][1] - 1)
    for (earlier, before), (later, after) in pairwise(record.events):
        found += [(later - earlier) / 1e3 / (after - before)] * (after - before)
    return found


def answered(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if record.error is None]


def samples(records: Sequence[Record]) -> dict[str, Values]:
    """All values of each metric, over answered requests."""
    good = answered(records)
    found = {
        "ttft": [ttft(record) for record in good],
        "tpot": [value for record in good if (value := tpot(record)) is not None],
        "itl": [value for record in good for value in itl(record)],
        "gap": [value for record in good for value in gaps(record)],
        "e2e": [e2e(record) for record in good],
    }
    return {name: np.asarray(values, dtype=np.float64) for name, values in found.items()}


def is_good(record: Record, objectives: Mapping[str, float]) -> bool:
    """Within every objective; `itl` is met by the mean of the request. An answer of one token has no TPOT to miss."""
    if record.error is not None:
        return False
    pace = tpot(record)
    measured = {"ttft": ttft(record), "tpot": pace, "itl": pace, "e2e": e2e(record)}
    return all((value := measured[name]) is None or value <= limit for name, limit in objectives.items())


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of one round under the whole load, in seconds, and the tokens that came in each of its slices."""

    seconds: float
    slices: Values  # tokens

    @property
    def tokens(self) -> float:
        return float(self.slices.sum())

    @property
    def rates(self) -> Values:
        """Tokens a second, slice by slice."""
        return self.slices * (len(self.slices) / self.seconds)


def slices(windows: Sequence[Window]) -> Slices:
    """Of all rounds, one after the other."""
    rates = [window.rates for window in windows]
    seconds = [np.full(len(window.slices), window.seconds / len(window.slices)) for window in windows]
    return Slices(np.concatenate([np.empty(0), *rates]), np.concatenate([np.empty(0), *seconds]))


def window(span: CaseSpan, records: Sequence[Record]) -> Window | None:
    """None where no such stretch is left, or nothing was answered. `records`: those of the span."""
    good = answered(records)
    if not good:
        return None
    start = min(record.start_us for record in records)
    end = max(record.start_us + record.end_us for record in records)
    if span.load.kind == "users":
        last_start = max(record.start_us for record in records)
        end = min(record.start_us + record.end_us for record in records if record.start_us + record.end_us > last_start)
    if end <= start:
        return None
    times, tokens = _token_times(good)
    counted, _ = np.histogram(times, bins=SLICES, range=(start, end), weights=tokens)
    return Window((end - start) / 1e6, counted)


def _token_times(records: Sequence[Record]) -> tuple[Values, Values]:
    """Microseconds of the run, and how many tokens came then."""
    times, tokens = [], []
    for record in records:
        before = 0
        for micros, so_far in record.events:
            times.append(record.start_us + micros)
            tokens.append(so_far - before)
            before = so_far
    return np.asarray(times, dtype=np.float64), np.asarray(tokens, dtype=np.float64)


def mean_concurrency(spans: Sequence[CaseSpan], records: Sequence[Record]) -> float:
    """Requests under way, averaged over the time of all these spans."""
    busy = sum(record.end_us for record in records)
    return busy / max(sum(span.end_us - span.start_us for span in spans), 1)
