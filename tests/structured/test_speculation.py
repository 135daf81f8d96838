"""p30: structured output under speculation. Drafts that say illegal things, many requests at once, equal texts."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structured.engines import generate, ids, make_llm, text
from structured.walks import BROKEN

from paceline import LLM, SamplingParams, StructuredOutputsParams

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "kinds": {"type": "array", "items": {"enum": ["ab", "abc", "b"]}, "minItems": 1, "maxItems": 3},
        "ok": {"type": "boolean"},
    },
    "required": ["name", "age", "kinds", "ok"],
}


@pytest.fixture(scope="module", params=["draft model", "ngram"])
def speculating(request: pytest.FixtureRequest) -> LLM:
    return make_llm(request.param)


@pytest.fixture(scope="module")
def plain() -> LLM:
    return make_llm("plain")


def schema_params(seed: int, **more: Any) -> SamplingParams:
    whole = dict.fromkeys(BROKEN, -100.0)  # random weights would write bytes that are no characters
    fields: dict[str, Any] = {"temperature": 1.0, "seed": seed, "max_tokens": 200, "logit_bias": whole}
    outputs = StructuredOutputsParams(json=SCHEMA, disable_any_whitespace=True)
    return SamplingParams(**fields | more, structured_outputs=outputs)


def test_p30_thirty_requests_at_once_give_thirty_valid_documents(speculating: LLM) -> None:
    outputs = generate(speculating, [schema_params(seed) for seed in range(30)])
    for output in outputs:
        assert output.outputs[0].finish_reason == "stop"
        jsonschema.validate(json.loads(text(output)), SCHEMA)
    counts = [output.metrics.speculative_decoding for output in outputs]
    drafted, accepted = sum(c.num_draft_tokens for c in counts), sum(c.num_accepted_tokens for c in counts)
    assert 0 < accepted < drafted  # some were rejected, so grammar states went back


def test_p30_greedy_texts_equal_those_without_speculation(speculating: LLM, plain: LLM) -> None:
    params = [
        SamplingParams(temperature=0, max_tokens=48, structured_outputs=outputs)
        for outputs in (
            {"json": SCHEMA},
            {"json_object": True},
            {"regex": r"(ab|[0-9]{2}){1,12}!"},
            {"choice": ["abc", "ab", "b12"]},
            {"grammar": 'root ::= item ("," item){2,9}\nitem ::= "ab" | "[" root "]" | [0-9]+'},
            {"grammar": 'start: ITEM ("," ITEM)*\nITEM: /[a-c]+/'},
        )
    ]
    expected = ids(generate(plain, params))
    assert ids(generate(speculating, params)) == expected
    assert ids(generate(speculating, params)) == expected  # and behind their own prefixes in the cache
    assert ids(generate(speculating, params[:1])) == expected[:1]


def test_free_rows_beside_constrained_ones_are_untouched(speculating: LLM, plain: LLM) -> None:
    free = [SamplingParams(temperature=0.8, seed=seed, max_tokens=20, ignore_eos=True) for seed in range(6)]
    mixed = [params if place % 2 else schema_params(place) for place, params in enumerate(free)]
    alone, beside = ids(generate(speculating, free)), ids(generate(speculating, mixed))
    assert beside[1::2] == alone[1::2]
    assert all(json.loads(text(output)) for output in generate(speculating, mixed)[::2])


def test_p05_a_seed_repeats_under_a_grammar_whatever_runs_beside_it(speculating: LLM) -> None:
    together = ids(generate(speculating, [schema_params(seed) for seed in range(6)]))
    assert ids(generate(speculating, [schema_params(0)])) == together[:1]
    assert len({tuple(answer) for answer in together}) > 1


def test_p25_every_answer_of_a_request_has_a_grammar_of_its_own(speculating: LLM) -> None:
    answers = generate(speculating, [schema_params(3, n=5)])[0].outputs
    assert len({answer.text for answer in answers}) > 1
    for answer in answers:
        jsonschema.validate(json.loads(answer.text), SCHEMA)


def test_p19_preempted_rows_go_on_where_their_grammar_was(plain: LLM) -> None:
    params = [schema_params(seed, temperature=0.0, max_tokens=60) for seed in range(8)]
    tight = make_llm("draft model", num_gpu_blocks_override=34, max_model_len=96)
    assert ids(generate(tight, params)) == ids(generate(plain, params))
    assert tight.stats().num_preemptions > 0


def test_p19_an_aborted_request_leaves_nothing_behind(speculating: LLM) -> None:
    stream = speculating.stream("ab", schema_params(1))
    next(stream)
    stream.close()
    outputs = generate(speculating, [schema_params(1)])
    jsonschema.validate(json.loads(text(outputs[0])), SCHEMA)


PIECES = st.sampled_from(["a", "b", "[ab]", "12", "(ab|b)", "[0-9]", ".", "é"])
REGEXES = st.lists(st.tuples(PIECES, st.sampled_from(["", "?", "{1,3}", "{2}"])), min_size=1, max_size=5).map(
    lambda parts: "".join(piece + count for piece, count in parts)
)
CHOICES = st.lists(st.text("ab1é ", min_size=1, max_size=6), min_size=1, max_size=5, unique=True)


@given(outputs=REGEXES.map(lambda r: {"regex": r}) | CHOICES.map(lambda c: {"choice": c}), seed=st.integers(0, 99))
@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_p30_whatever_the_grammar_the_text_matches_and_equals_plain_decoding(
    speculating: LLM, plain: LLM, outputs: dict[str, Any], seed: int
) -> None:
    temperature = random.Random(seed).choice([0.0, 1.0])
    whole = dict.fromkeys(BROKEN, -100.0)
    params = SamplingParams(
        temperature=temperature, seed=seed, max_tokens=60, structured_outputs=outputs, logit_bias=whole
    )
    answer = generate(speculating, [params])[0]
    if "regex" in outputs:
        assert re.fullmatch(outputs["regex"], text(answer), re.DOTALL)
    else:
        assert text(answer) in outputs["choice"]
    if temperature == 0.0:
        assert ids([answer]) == ids(generate(plain, [params]))
