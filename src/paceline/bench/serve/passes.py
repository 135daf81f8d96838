"""How many passes of the target the tokens of a case took: every decoding pass of a row counts, with drafts or without.

The passes that had drafts would flatter wherever K adapts, which drafts where it pays: "1 + accepted / drafts" is told
apart (results.Acceptance.mean_length).
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.bench.serve.records import CaseSpan, Counts, Record
from paceline.bench.serve.results import Passes


def passes_of(answers: Sequence[Record], spans: Sequence[CaseSpan]) -> tuple[Passes | None, dict[str, Passes]]:
    """Of all answers, and by category: from what every answer says of itself, else (all alone) from the server's
    counters, which count requests of others too; None where neither is told."""
    told = [record for record in answers if record.speculation is not None]
    if not told:
        return from_counters(answers, spans), {}
    categories = sorted({record.category for record in told})
    return _sum(told), {name: _sum([r for r in told if r.category == name]) for name in categories}


def _sum(answers: Sequence[Record]) -> Passes:
    found = [_of_answer(record.num_tokens, record.speculation) for record in answers if record.speculation is not None]
    return Passes(sum(one.count for one in found), sum(one.tokens for one in found))


def _of_answer(num_tokens: int, counts: Counts) -> Passes:
    """Without its first token and the pass that gave it."""
    later = max(0, num_tokens - 1)
    passes = undrafted(later, counts.accepted_tokens, counts.drafts) if counts.passes is None else counts.passes - 1
    return Passes(max(0, passes), later)


def from_counters(answers: Sequence[Record], spans: Sequence[CaseSpan]) -> Passes | None:
    known = [span.counters for span in spans if "generation_tokens" in span.counters]
    if not known or len(known) < len(spans):
        return None
    tokens, passes, drafts, accepted = (
        sum(counters.get(name, 0.0) for counters in known)
        for name in ("generation_tokens", "passes", "drafts", "accepted_tokens")
    )
    firsts = sum(record.num_tokens > 0 for record in answers)
    later = max(0.0, tokens - firsts)
    if passes:
        return Passes(max(0.0, passes - firsts), later)
    return Passes(undrafted(later, accepted, drafts), later) if drafts else None


def undrafted(tokens: float, accepted: float, drafts: float) -> float:
    """Passes where no server says how many: each gives one token beside the accepted ones. An answer that ends within
    its drafts lacks that one token, so this is a pass an answer too few at most."""
    return max(tokens - accepted, drafts)
