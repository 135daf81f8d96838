"""Structured output with the default pair: documents that are valid, and the same ones with speculation and without."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from paceline import LLM, SamplingParams
from paceline.errors import PacelineError
from paceline.hub import resolve

pytestmark = pytest.mark.models

MODEL, DRAFT = "smollm2-135m-instruct", "smollm2-135m-instruct-draft"
CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "people": {"type": "integer", "minimum": 0},
        "capital": {"type": "boolean"},
    },
    "required": ["city", "people", "capital"],
}
LIST = {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 2, "maxItems": 4}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("Describe Paris as JSON.", {"json": CITY}),
    ("Name the colours of light as JSON.", {"json": LIST}),
    ("Is water wet?", {"choice": ["yes", "no", "perhaps"]}),
    ("Give a date.", {"regex": r"(19|20)[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9])"}),
]


@pytest.fixture(scope="module")
def prompts() -> list[list[dict[str, str]]]:
    try:
        resolve(MODEL)
    except PacelineError as error:
        pytest.skip(f"the default target cannot be had here: {error}")
    return [[{"role": "user", "content": question}] for question, _ in CASES]


@pytest.fixture(scope="module")
def expected(prompts: list[list[dict[str, str]]]) -> list[list[int]]:
    with LLM(MODEL, dtype="float32", max_model_len=256, kv_cache_memory_bytes=100_000_000) as llm:
        return answers(llm, prompts)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(
        MODEL,
        dtype="float32",
        max_model_len=256,
        kv_cache_memory_bytes=100_000_000,
        speculative_config={"model": DRAFT, "num_speculative_tokens": 4, "adaptive": False},
    ) as llm:
        yield llm


def answers(llm: LLM, prompts: list[list[dict[str, str]]]) -> list[list[int]]:
    params = [SamplingParams(temperature=0, max_tokens=48, structured_outputs=outputs) for _, outputs in CASES]
    outputs = llm.chat(prompts, params, use_tqdm=False)
    for output, (_, asked) in zip(outputs, CASES, strict=True):
        answer = output.outputs[0]
        assert answer.finish_reason == "stop", answer.text
        check(answer.text, asked)
    return [list(output.outputs[0].token_ids) for output in outputs]


def check(text: str, asked: dict[str, Any]) -> None:
    if "json" in asked:
        jsonschema.validate(json.loads(text), asked["json"])
    elif "regex" in asked:
        assert re.fullmatch(asked["regex"], text)
    else:
        assert text in asked["choice"]


def test_p30_documents_are_valid_and_those_without_speculation(
    llm: LLM, prompts: list[list[dict[str, str]]], expected: list[list[int]]
) -> None:
    assert answers(llm, prompts) == expected
    counts = llm.stats().speculation
    assert 0 < counts.num_accepted_tokens < counts.num_draft_tokens
