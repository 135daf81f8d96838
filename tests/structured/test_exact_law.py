"""The law under a grammar, exactly: each token's law is the target's, masked and normalised, drafts or not.

The grammar allows few texts, so that the probability of every token path can be computed from the target's raw
log-probabilities alone, with no help of the code under test but for which tokens are legal.
"""

from __future__ import annotations

import math
from collections import Counter

import pytest
from structured.byte_tokens import byte_tokenizer, eos_id
from structured.engines import make_llm
from structured.walks import legal, make_masks, plan_row

from paceline import LLM, SamplingParams
from paceline.structured.params import single

CHOICES = ["a", "ab", "abc", "abab", "b1", "b12", "12"]
PROMPT = byte_tokenizer().encode("abab abc b12 12 ab")  # lookups find something to say
TEMPERATURE = 6.0  # random weights are very sure of themselves
SAMPLES = 1024

Path = tuple[int, ...]


def raw_logprobs(llm: LLM, output: Path) -> dict[int, float]:
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=-1, ignore_eos=True)
    answer = llm.generate([{"prompt_token_ids": [*PROMPT, *output]}], params, use_tqdm=False)[0].outputs[0]
    assert answer.logprobs is not None
    return {token: entry.logprob for token, entry in answer.logprobs[0].items()}


def exact_law(llm: LLM) -> dict[Path, float]:
    """Probability of every complete token path."""
    constraint, masks = single("choice", CHOICES, "choice"), make_masks()
    law: dict[Path, float] = {}
    open_paths: list[tuple[Path, float]] = [((), 1.0)]
    while open_paths:
        path, mass = open_paths.pop()
        if path and path[-1] == eos_id():
            law[path] = mass
            continue
        allowed = legal(masks.masks(plan_row(constraint, list(path)), [], 0, 1)[0])
        raw = raw_logprobs(llm, path)
        weights = {token: math.exp(raw[token] / TEMPERATURE) for token in allowed}
        open_paths += [((*path, token), mass * w / sum(weights.values())) for token, w in weights.items()]
    return law


@pytest.fixture(scope="module")
def law() -> dict[Path, float]:
    law = exact_law(make_llm("plain", max_logprobs=-1))
    assert math.isclose(sum(law.values()), 1.0, rel_tol=1e-5)
    assert len(law) > 10  # "ab" is one token or two
    assert {byte_tokenizer().decode(path) for path in law} == set(CHOICES)
    return law


@pytest.mark.parametrize("speculation", ["draft model", "ngram", "either"])
def test_p30_the_answers_have_the_targets_law_under_the_grammar(speculation: str, law: dict[Path, float]) -> None:
    llm = make_llm(speculation, max_num_seqs=64, max_num_batched_tokens=1024)
    mixed = speculation == "either"  # without seeds of their own, which would fix what drafts
    each = [
        SamplingParams(
            temperature=TEMPERATURE, n=128, seed=None if mixed else seed, max_tokens=16,
            structured_outputs={"choice": CHOICES},
            speculation={"proposer": ("auto", "ngram", "draft")[seed % 3]} if mixed else None,
        )
        for seed in range(SAMPLES // 128)
    ]  # fmt: skip
    outputs = llm.generate([{"prompt_token_ids": PROMPT}] * len(each), each, use_tqdm=False)
    counts = Counter(tuple(answer.token_ids) for output in outputs for answer in output.outputs)
    assert counts.total() == SAMPLES
    assert counts.keys() <= law.keys()
    likely = {path: p for path, p in law.items() if p * SAMPLES >= 5}
    rare = 1.0 - sum(likely.values())
    expected = [p * SAMPLES for p in likely.values()] + ([rare * SAMPLES] if rare * SAMPLES >= 1 else [])
    seen = [counts[path] for path in likely]
    seen += [SAMPLES - sum(seen)] if len(expected) > len(seen) else []
    statistic = sum((s - e) ** 2 / e for s, e in zip(seen, expected, strict=True))
    freedom = len(expected) - 1
    assert freedom >= 4
    assert statistic < freedom + 4 * math.sqrt(2 * freedom) + 8  # far out on the right; the seeds are fixed
    counted = llm.stats().speculation
    for proposer in {"draft model": ["draft"], "ngram": [], "either": ["draft", "ngram"]}[speculation]:
        own = counted.by_proposer[proposer]
        assert 0 < own.num_accepted_tokens < own.num_draft_tokens
