"""What FP8 costs in quality: perplexity, greedy agreement and divergence against the same model in float32.

    python benchmarks/fp8_quality.py [--model NAME] [--prompts FILE.jsonl] [--num-prompts 40] [--new-tokens 128]

The texts are the prompts and the float32 model's own greedy answers, so every variant is asked about the same tokens.
BF16 is measured beside FP8: how far it is from float32 is the yardstick. On a GPU the kernels run; on a CPU their
references, which round as they do (weights a scale a row, activations a scale a token) and are slow.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from common import load_prompts, record
from torch import Tensor

from paceline import LLM, SamplingParams
from paceline.config import ModelConfig
from paceline.runner.batch_inputs import Span, build
from paceline.runner.model_runner import ModelRunner

BLOCK_SIZE = 16


@dataclass(frozen=True)
class Text:
    token_ids: list[int]
    first_answer: int  # tokens from here on are the float32 model's greedy answer


@dataclass
class Tally:
    """Sums over the scored tokens of one variant."""

    prompt_nll: float = 0.0
    num_prompt_tokens: int = 0
    answer_nll: float = 0.0
    num_answer_tokens: int = 0
    num_agreeing: int = 0  # answer tokens that are the variant's own likeliest
    divergence: float = 0.0  # KL(float32 || variant) over all scored places, nats
    largest_divergence: float = 0.0
    first_difference: list[int] = field(default_factory=list)  # a text: agreeing tokens before the first other one

    def add(self, reference: Tensor, logprobs: Tensor, text: Text) -> None:
        """Both [T - 1, V] float32 log-probabilities: row i is of token i + 1."""
        targets = torch.tensor(text.token_ids[1:], device=logprobs.device)
        nll = -logprobs.gather(1, targets[:, None]).squeeze(1)
        start = text.first_answer - 1
        self.prompt_nll += float(nll[:start].sum())
        self.num_prompt_tokens += start
        self.answer_nll += float(nll[start:].sum())
        self.num_answer_tokens += len(nll) - start
        same = (logprobs.argmax(-1) == targets)[start:].tolist()
        self.num_agreeing += sum(same)
        self.first_difference.append(same.index(False) if False in same else len(same))
        divergence = (reference.exp() * (reference - logprobs)).sum(-1)
        self.divergence += float(divergence.sum())
        self.largest_divergence = max(self.largest_divergence, float(divergence.max()))

    def summary(self) -> dict[str, Any]:
        num_tokens = self.num_prompt_tokens + self.num_answer_tokens
        return {
            "prompt_perplexity": math.exp(self.prompt_nll / self.num_prompt_tokens),
            "answer_perplexity": math.exp(self.answer_nll / self.num_answer_tokens),
            "greedy_agreement": self.num_agreeing / self.num_answer_tokens,
            "mean_agreeing_run": sum(self.first_difference) / len(self.first_difference),
            "mean_divergence_nats": self.divergence / num_tokens,
            "largest_divergence_nats": self.largest_divergence,
            "num_prompt_tokens": self.num_prompt_tokens,
            "num_answer_tokens": self.num_answer_tokens,
        }


def answers(model: str, device: str, prompts: Sequence[str], new_tokens: int) -> tuple[list[Text], ModelConfig]:
    """Greedy answers of the float32 model, and its configuration."""
    params = SamplingParams(temperature=0.0, max_tokens=new_tokens)
    with LLM(model=model, dtype="float32", device=device, max_model_len=2048) as llm:
        conversations = [[{"role": "user", "content": prompt}] for prompt in prompts]
        outputs = llm.chat(conversations, params)
        texts = [Text([*o.prompt_token_ids, *o.outputs[0].token_ids], len(o.prompt_token_ids)) for o in outputs]
        return texts, llm.config.model


def variants(config: ModelConfig, device: str) -> dict[str, ModelConfig]:
    fp8 = replace(config, dtype="bfloat16" if device == "cuda" else "float32", quantization="fp8")
    return {
        "bfloat16": replace(config, dtype="bfloat16"),
        "fp8": fp8,
        "fp8, head too": replace(fp8, quantize_lm_head=True),
        "fp8, cache too": replace(fp8, kv_cache_dtype="fp8"),
    }


class Scorer:
    """One model, reading one text at a time."""

    def __init__(self, config: ModelConfig, device: str) -> None:
        self._runner = ModelRunner.load(config, device, fp8_products=True)
        self._runner.use_fused |= config.kv_cache_dtype == "fp8"  # the only way that reads an FP8 cache
        self._vocab_size = config.vocab_size
        self._blocks = list(range(1, -(-config.max_model_len // BLOCK_SIZE) + 1))
        self._runner.allocate_kv(len(self._blocks) + 1, BLOCK_SIZE)

    def logprobs(self, text: Text) -> Tensor:
        """[T - 1, V] float32."""
        read = text.token_ids[:-1]
        span = Span(block_table=self._blocks, start=0, tokens=read, num_logits=len(read))
        batch = build([span], BLOCK_SIZE, len(read)).to(self._runner.device)
        return self._runner.forward(batch).logits[:, : self._vocab_size].log_softmax(-1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--prompts", type=Path, default=None, help="JSONL with `turns`; without it, built-in ones")
    parser.add_argument("--num-prompts", type=int, default=40)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--no-record", action="store_true", help="print only")
    options = parser.parse_args()

    prompts = load_prompts(options.prompts)
    stride = max(1, len(prompts) // options.num_prompts)  # over all categories, which lie one behind the other
    texts, config = answers(options.model, options.device, prompts[::stride][: options.num_prompts], options.new_tokens)
    texts = [text for text in texts if len(text.token_ids) > text.first_answer]
    reference = Scorer(config, options.device)
    scorers = {name: Scorer(changed, options.device) for name, changed in variants(config, options.device).items()}
    tallies = {name: Tally() for name in ("float32", *scorers)}
    with torch.inference_mode():
        for number, text in enumerate(texts, 1):
            exact = reference.logprobs(text)
            tallies["float32"].add(exact, exact, text)
            for name, scorer in scorers.items():
                tallies[name].add(exact, scorer.logprobs(text), text)
            print(f"{number} of {len(texts)} texts", flush=True)
    results = {name: tally.summary() for name, tally in tallies.items()}
    for name, summary in results.items():
        print(
            f"{name:16} perplexity {summary['prompt_perplexity']:.3f} (prompts) {summary['answer_perplexity']:.4f} "
            f"(answers), greedy agreement {summary['greedy_agreement']:.2%}, "
            f"divergence {summary['mean_divergence_nats']:.5f} nats"
        )
    if not options.no_record:
        setting = {
            "model": options.model,
            "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
            "prompts": str(options.prompts.name) if options.prompts else "built-in",
            "num_texts": len(texts),
            "new_tokens": options.new_tokens,
        }
        print(record(f"fp8-quality-{options.device}", {"setting": setting, "results": results}))


if __name__ == "__main__":
    main()
