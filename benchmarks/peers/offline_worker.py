"""One side of cpu_speculation.py: loads its engine, then answers a JSON line with another until its input ends.

Runs in the side's own environment, so it imports nothing of ours unless it is ours. Answers start with `@`, because
libraries print to standard output too.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

Generate = Callable[[list[list[int]], int], list[int]]  # prompts, most tokens -> tokens of each answer


def paceline(options: dict[str, Any], speculation: dict[str, Any] | None) -> tuple[Generate, str]:
    from paceline import LLM, SamplingParams, __version__

    llm = LLM(
        model=options["model"], dtype=options["dtype"], max_model_len=2048, max_num_seqs=options["max_num_seqs"],
        enable_prefix_caching=False, speculative_config=speculation,
    )  # fmt: skip

    def generate(prompts: list[list[int]], most: int) -> list[int]:
        params = SamplingParams(temperature=0.0, max_tokens=most, detokenize=False)
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
        return [len(output.outputs[0].token_ids) for output in outputs]

    return generate, f"paceline {__version__}"


def vllm(options: dict[str, Any], speculation: dict[str, Any] | None) -> tuple[Generate, str]:
    from vllm import LLM, SamplingParams, __version__

    llm = LLM(
        model=options["model"], dtype=options["dtype"], max_model_len=2048, max_num_seqs=options["max_num_seqs"],
        enable_prefix_caching=False, gpu_memory_utilization=0.15, speculative_config=speculation,
    )  # fmt: skip

    def generate(prompts: list[list[int]], most: int) -> list[int]:
        params = SamplingParams(temperature=0.0, max_tokens=most, detokenize=False)
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
        return [len(output.outputs[0].token_ids) for output in outputs]

    return generate, f"vllm {__version__}"


def transformers_assisted(options: dict[str, Any]) -> tuple[Generate, str]:
    import torch
    from transformers import AutoModelForCausalLM, __version__

    dtype = getattr(torch, options["dtype"])
    target = AutoModelForCausalLM.from_pretrained(options["model"], dtype=dtype).eval()
    draft = AutoModelForCausalLM.from_pretrained(options["draft"], dtype=dtype).eval()
    draft.generation_config.num_assistant_tokens = options["k"]
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0

    def generate(prompts: list[list[int]], most: int) -> list[int]:
        lengths = []
        for ids in prompts:
            given = torch.tensor([ids])
            out = target.generate(
                given,
                attention_mask=torch.ones_like(given),
                assistant_model=draft,
                do_sample=False,
                max_new_tokens=most,
            )
            lengths.append(out.shape[1] - given.shape[1])
        return lengths

    return generate, f"transformers {__version__}"


def engine(options: dict[str, Any]) -> tuple[Generate, str]:
    k = options["k"]
    ngram = {"method": "ngram", "num_speculative_tokens": k, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
    draft = {"model": options["draft"], "num_speculative_tokens": k}
    match options["side"]:
        case "paceline":
            return paceline(options, draft)
        case "paceline-plain":
            return paceline(options, None)
        case "transformers-assisted":
            return transformers_assisted(options)
        case "vllm-draft":
            return vllm(options, {**draft, "method": "draft_model"})
        case "vllm-ngram":
            return vllm(options, ngram)
        case "vllm-plain":
            return vllm(options, None)
        case side:
            raise SystemExit(f"no such side: {side}")


def say(words: Any) -> None:
    print("@" + json.dumps(words), flush=True)


def main() -> None:
    options = json.loads(sys.argv[1])
    generate, version = engine(options)
    say({"version": version, "dtype": options["dtype"]})
    for line in sys.stdin:
        asked = json.loads(line)
        started = time.perf_counter()
        lengths = generate(asked["prompts"], asked["max_tokens"])
        say({"seconds": time.perf_counter() - started, "lengths": lengths})


if __name__ == "__main__":  # vLLM starts processes that import this file
    main()
