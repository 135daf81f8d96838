"""The default target, pulled as a user pulls it: a directory that transformers reads, and a model that talks sense."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline import hub
from paceline.tokenizer import load_tokenizer

pytestmark = pytest.mark.models

SYSTEM = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def directory() -> Path:
    return hub.resolve("smollm2-135m-instruct")


def test_prompt_is_chatml_with_the_default_system_message(directory: Path) -> None:
    tokenizer = load_tokenizer(directory)
    assert (tokenizer.vocab_size, tokenizer.eos_token_id) == (49152, 2)
    prompt = tokenizer.apply_chat_template(QUESTION)
    asked = f"<|im_start|>user\n{QUESTION[0]['content']}<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(prompt, skip_special_tokens=False) == SYSTEM + asked


@pytest.mark.parametrize("text", ["don't  5 12345", "héllo 你好 😀\n\n\tx", "e\u0301 \u200d👩‍👩‍👧 \r\n", "<|im_end|>"])
def test_text_survives_encode_and_decode(directory: Path, text: str) -> None:
    tokenizer = load_tokenizer(directory)
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text


def test_files_say_what_was_converted(directory: Path) -> None:
    config = json.loads((directory / "config.json").read_text())
    assert (config["model_type"], config["num_hidden_layers"], config["rope_theta"]) == ("llama", 30, 100000.0)
    assert json.loads((directory / "generation_config.json").read_text())["eos_token_id"] == 2
    (info,) = [info for info in hub.list_models() if info.name == "smollm2-135m-instruct"]
    assert info.dtype == "bfloat16"
    assert 200e6 < info.size_bytes < 300e6


def test_greedy_answer_through_transformers(directory: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    tokenizer = load_tokenizer(directory)
    prompt = torch.tensor([tokenizer.apply_chat_template(QUESTION)])
    output = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=16, do_sample=False)
    answer = tokenizer.decode(output[0, prompt.shape[1] :].tolist(), skip_special_tokens=False)
    assert answer == "The capital of France is Paris.<|im_end|>"
