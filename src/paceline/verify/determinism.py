"""Part (c): a seed repeats its text whatever runs beside it: alone, in a batch, in another order and company."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paceline.verify.parity import first_difference
from paceline.verify.report import DeterminismTest, Verdict
from paceline.verify.sampling import Request

Answer = Callable[[Sequence[Request]], list[list[int]]]


def check(
    mode: str, requests: Sequence[Request], strangers: Sequence[Request], answer: Answer, allowed: float
) -> list[DeterminismTest]:
    """`strangers`: as many other requests, mixed in between; `answer` runs requests as one batch; `allowed`: share of
    texts that may change, where the dtype rounds.
    """
    together = answer(requests)
    mixed = [request for pair in zip(strangers, reversed(requests), strict=False) for request in pair]
    companies = {
        "alone": [tokens for request in requests for tokens in answer([request])],
        "in reverse order among other requests": list(reversed(answer(mixed)[1::2])),
        "the same batch again, prompts cached": answer(requests),
    }
    return [_compare(mode, company, together, texts, allowed) for company, texts in companies.items()] + [
        _seed_matters(mode, requests, together, answer)
    ]


def _compare(
    mode: str, company: str, expected: list[list[int]], found: list[list[int]], allowed: float
) -> DeterminismTest:
    changed = [
        number
        for number, (one, other) in enumerate(zip(expected, found, strict=True), 1)
        if first_difference(one, other) is not None
    ]
    verdict: Verdict = "fail" if len(changed) > allowed * len(expected) else "pass"
    return DeterminismTest(mode, company, len(expected), sum(map(len, expected)), changed, verdict)


def _seed_matters(mode: str, requests: Sequence[Request], together: list[list[int]], answer: Answer) -> DeterminismTest:
    """Other seeds give other texts, or all of the above would be empty."""
    others = [Request(r.prompt, r.params, (r.seed or 0) + 1, r.max_tokens) for r in requests]
    same = answer(others) == together
    verdict: Verdict = "fail" if same else "pass"
    changed = list(range(1, len(requests) + 1)) if same else []
    return DeterminismTest(
        mode, "other seeds give other texts", len(requests), sum(map(len, together)), changed, verdict
    )
