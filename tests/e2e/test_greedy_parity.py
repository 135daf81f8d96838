"""In float32 the greedy text with every proposer is the text without speculation, and transformers' text.

32 prompts over all categories of Spec-Bench's development half, through the chat template; alone, in batches of
8 and in one of 32. PACELINE_PARITY_TOKENS and PACELINE_PARITY_PROMPT_TOKENS make it longer than CI has time for.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from paceline import LLM, SamplingParams
from paceline.errors import PacelineError
from paceline.hub import resolve

pytestmark = pytest.mark.models

MODEL = "smollm2-135m-instruct"
DRAFT = "smollm2-135m-instruct-draft"
PROMPTS = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "spec_bench_dev.jsonl"
NEW_TOKENS = int(os.environ.get("PACELINE_PARITY_TOKENS", "24"))
PROMPT_TOKENS = int(os.environ.get("PACELINE_PARITY_PROMPT_TOKENS", "160"))
COUNT = 32


@pytest.fixture(scope="module")
def target() -> Path:
    try:
        return resolve(MODEL)
    except PacelineError as error:
        pytest.skip(f"the default target cannot be had here: {error}")


@pytest.fixture(scope="module")
def prompts(target: Path) -> list[list[int]]:
    if not PROMPTS.exists():
        pytest.skip("the prompts of Spec-Bench are not beside this checkout")
    tokenizer = AutoTokenizer.from_pretrained(target)
    fitting = []
    for line in PROMPTS.read_text().splitlines():
        chat = [{"role": "user", "content": json.loads(line)["turns"][0]}]
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        if len(ids) <= PROMPT_TOKENS:
            fitting.append(ids)
    step = len(fitting) / COUNT  # the file is in order of category: take from all of it
    return [fitting[int(i * step)] for i in range(COUNT)]


@pytest.fixture(scope="module")
def expected(target: Path, prompts: list[list[int]]) -> list[list[int]]:
    """transformers' greedy text, one prompt at a time."""
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    texts = []
    for ids in prompts:
        with torch.inference_mode():
            output = model.generate(
                torch.tensor([ids]),
                attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
                max_new_tokens=NEW_TOKENS,
                do_sample=False,
            )
        texts.append(output[0, len(ids) :].tolist())
    return texts


CONFIGS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "ngram": {"method": "ngram", "num_speculative_tokens": 5, "adaptive": False},
    "draft": {"model": DRAFT, "num_speculative_tokens": 5, "adaptive": False},  # else a slow machine may not draft
}


@pytest.fixture(scope="module", params=list(CONFIGS))
def llm(request: pytest.FixtureRequest, target: Path, prompts: list[list[int]]) -> Iterator[LLM]:
    """`prompts` is not used here, but without them nothing is run and nothing can be said of the counts."""
    config = CONFIGS[request.param]
    extra = {} if config is None else {"speculative_config": config}
    with LLM(MODEL, dtype="float32", max_num_seqs=32, **extra) as made:
        yield made
        counts = made.stats().speculation
        assert (counts.num_accepted_tokens > 0) == (config is not None)


@pytest.mark.parametrize("batch", [1, 8, 32])
def test_greedy_text_is_transformers_text(
    llm: LLM, prompts: list[list[int]], expected: list[list[int]], batch: int
) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS)
    texts: list[list[int]] = []
    for start in range(0, len(prompts), batch):
        chunk = [{"prompt_token_ids": ids} for ids in prompts[start : start + batch]]
        texts += [list(o.outputs[0].token_ids) for o in llm.generate(chunk, params, use_tqdm=False)]
    assert texts == expected
