"""Part (b): greedy text with and without speculation; every difference is a near-tie or a fault.

Where two texts part, the oracle gives both tokens' processed logits. Closer together than the dtype rounds, either
token is a right answer; further apart, one engine took a token that is not the likeliest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paceline.verify.cases import Setting
from paceline.verify.law import processed_logits
from paceline.verify.oracle import Oracle
from paceline.verify.precision import Precision
from paceline.verify.report import Difference, ParityTest

Text = Callable[[int], str | None]


def compare(
    mode: str,
    setting: Setting,
    prompts: Sequence[Sequence[int]],
    plain: Sequence[Sequence[int]],
    speculative: Sequence[Sequence[int]],
    oracle: Oracle,
    ends: Sequence[int],
    precision: Precision,
    text: Text,
) -> ParityTest:
    """Texts of the same prompts and setting from an engine without and one with speculation."""
    differences = []
    for number, (prompt, one, other) in enumerate(zip(prompts, plain, speculative, strict=True)):
        place = first_difference(one, other)
        if place is None:
            continue
        prefix = tuple(one[:place])
        (raw,) = oracle.logits([(*prompt, *prefix)])
        logits = processed_logits(raw, setting.params, prompt, prefix, ends)
        tokens = [seq[place] if place < len(seq) else -1 for seq in (one, other)]
        values = [float(logits[token]) if token >= 0 else None for token in tokens]
        margin = abs(values[0] - values[1]) if values[0] is not None and values[1] is not None else float("inf")
        differences.append(
            Difference(
                mode=mode,
                setting=setting.name,
                prompt=str(number + 1),
                place=place,
                plain_token=tokens[0],
                speculative_token=tokens[1],
                plain_text=text(tokens[0]) if tokens[0] >= 0 else "(the text ends)",
                speculative_text=text(tokens[1]) if tokens[1] >= 0 else "(the text ends)",
                plain_logit=values[0],
                speculative_logit=values[1],
                tolerance=precision.logit,
                kind="near-tie" if margin <= precision.logit else "fault",
            )
        )
    return ParityTest(
        mode=mode,
        setting=setting.name,
        num_texts=len(prompts),
        num_tokens=sum(map(len, speculative)),
        num_identical=len(prompts) - len(differences),
        differences=differences,
    )


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The first place where two texts part; None if they are the same."""
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return place
    return None if len(one) == len(other) else min(len(one), len(other))
