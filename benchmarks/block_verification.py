"""How many more drafts block verification keeps than token-wise rejection, on the default pair.

    python benchmarks/block_verification.py [--prompts FILE] [--temperatures 0.7 1.0] [--num-tokens 192]

Both methods are exact: their texts have one law, and what is compared is the number of tokens a target pass. The
same prompts, lengths and number of drafts are given to both; seeds differ from prompt to prompt. The interval is
a bootstrap over prompts of the ratio. No time is measured.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import Any

from common import load_prompts, record

from paceline import LLM, SamplingParams
from paceline.arguments import DEFAULT_DRAFT, DEFAULT_MODEL

METHODS = ("standard", "block")


def main() -> None:
    options = parse()
    prompts = load_prompts(options.prompts)
    prompts = prompts[:: max(1, len(prompts) // options.num_prompts)][: options.num_prompts]  # of every category
    counts = {method: measure(method, prompts, options) for method in METHODS}
    rows = [summarise(counts, temperature, options.seed) for temperature in options.temperatures]
    for row in rows:
        print(
            f"T={row['temperature']}: {row['standard']:.3f} -> {row['block']:.3f} tokens a target pass, "
            f"{row['gain_percent']:+.1f} % ({row['gain_percent_low']:+.1f} to {row['gain_percent_high']:+.1f})"
        )
    path = record(
        "block-verification",
        {
            "model": DEFAULT_MODEL,
            "draft": DEFAULT_DRAFT,
            "num_speculative_tokens": options.k,
            "prompts": str(options.prompts.name) if options.prompts else "built-in",
            "num_prompts": len(prompts),
            "answers_a_prompt": options.answers,
            "tokens_an_answer": options.num_tokens,
            "results": rows,
            "counts": counts,
        },
    )
    print(f"Recorded in {path}.")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--prompts", type=Path, help="JSONL with `turns`; default: the built-in ones")
    parser.add_argument("--num-prompts", type=int, default=8, help="spread evenly over the file")
    parser.add_argument("--answers", type=int, default=2, help="answers a prompt")
    parser.add_argument("--num-tokens", type=int, default=192, help="tokens an answer")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.7, 1.0])
    parser.add_argument("-k", type=int, default=5, help="tokens drafted a step")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def measure(method: str, prompts: list[str], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Drafts and accepted drafts of every prompt at every temperature."""
    config = {
        "model": DEFAULT_DRAFT,
        "num_speculative_tokens": options.k,
        "rejection_sample_method": method,
        "adaptive": False,
    }
    found = []
    with LLM(DEFAULT_MODEL, speculative_config=config) as llm:
        for temperature in options.temperatures:
            params = [
                SamplingParams(
                    temperature=temperature,
                    seed=options.seed + number,
                    n=options.answers,
                    max_tokens=options.num_tokens,
                    ignore_eos=True,  # the same number of tokens from both methods
                )
                for number in range(len(prompts))
            ]
            outputs = llm.chat([[{"role": "user", "content": prompt}] for prompt in prompts], params)
            for number, output in enumerate(outputs):
                metrics = output.metrics.speculative_decoding
                found.append(
                    {
                        "temperature": temperature,
                        "prompt": number,
                        "drafts": metrics.num_drafts,
                        "accepted": metrics.num_accepted_tokens,
                        "accepted_per_pos": metrics.num_accepted_tokens_per_pos,
                    }
                )
    return found


def summarise(counts: dict[str, list[dict[str, Any]]], temperature: float, seed: int) -> dict[str, float]:
    pairs = {method: [c for c in counts[method] if c["temperature"] == temperature] for method in METHODS}
    size, rng = len(pairs["block"]), random.Random(seed)

    def length(method: str, chosen: list[int]) -> float:
        drafts = sum(pairs[method][i]["drafts"] for i in chosen)
        return 1.0 + sum(float(pairs[method][i]["accepted"]) for i in chosen) / drafts

    def gain(chosen: list[int]) -> float:
        return 100.0 * (length("block", chosen) / length("standard", chosen) - 1.0)

    gains = sorted(gain([rng.randrange(size) for _ in range(size)]) for _ in range(2000))
    everything = list(range(size))
    return {
        "temperature": temperature,
        "standard": length("standard", everything),
        "block": length("block", everything),
        "gain_percent": gain(everything),
        "gain_percent_low": gains[50],
        "gain_percent_high": gains[1949],
    }


if __name__ == "__main__":
    main()
