"""Tokens a target pass and speed of a draft, through Paceline itself: chat template, EOS honoured.

    python benchmarks/draft_acceptance.py --prompts spec_bench.jsonl [--per-category 5] [--num-speculative-tokens 5]
    python benchmarks/draft_acceptance.py --prompts spec_bench.jsonl --proposers draft,ngram,auto [--adaptive]

Acceptance is counted by the engine, greedy and at temperature 0.7 / top-p 0.9, for each proposer: the draft model, a
lookup in the text, or whichever is surer. Tokens a pass count passes without drafts as well. Then plain against each
proposer at one and at eight sequences, greedy: they take turns prompt by prompt (or batch by batch) in one process,
because a shared CPU drifts; the figures to read are the ratios. Prompts are a JSON object a line with `category` and
`turns`.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from common import record

from paceline import LLM, SamplingParams
from paceline.sequence import SpeculationCounts

Prompt = tuple[str, list[int]]  # category, token ids
LAWS = {"greedy": {"temperature": 0.0}, "temperature 0.7, top-p 0.9": {"temperature": 0.7, "top_p": 0.9}}


def choose(path: Path, per_category: int) -> list[dict[str, Any]]:
    """So many of every category, spread over the file."""
    found = defaultdict(list)
    for line in path.read_text().splitlines():
        if line.strip():
            entry = json.loads(line)
            found[entry["category"]].append(entry)
    return [e for entries in found.values() for e in entries[:: max(1, len(entries) // per_category)][:per_category]]


def encode(llm: LLM, entries: list[dict[str, Any]]) -> list[Prompt]:
    tokenizer = llm.get_tokenizer()
    turns = [(e["category"], [{"role": "user", "content": e["turns"][0]}]) for e in entries]
    return [(category, tokenizer.apply_chat_template(messages)) for category, messages in turns]


def run(
    llm: LLM, prompts: list[Prompt], proposer: str | None, **sampling: Any
) -> tuple[float, list[list[int]], list[SpeculationCounts]]:
    """Seconds for all of them at once, their answers, their counters. No seeds: with one the proposer is fixed."""
    params = SamplingParams(**{"detokenize": False, "speculation": proposer and {"proposer": proposer}, **sampling})
    started = time.perf_counter()
    outputs = llm.generate([{"prompt_token_ids": ids} for _, ids in prompts], params, use_tqdm=False)
    seconds = time.perf_counter() - started
    answers = [list(output.outputs[0].token_ids) for output in outputs]
    return seconds, answers, [output.metrics.speculative_decoding for output in outputs]


def acceptance(
    llm: LLM, prompts: list[Prompt], proposer: str | None, sampling: dict[str, Any], batch: int
) -> dict[str, Any]:
    """By category and for all: the engine's counters summed, and the mean acceptance length."""
    sums: dict[str, SpeculationCounts] = defaultdict(SpeculationCounts)
    tokens: dict[str, int] = defaultdict(int)
    each = []
    for start in range(0, len(prompts), batch):
        part = prompts[start : start + batch]
        _, answers, counts = run(llm, part, proposer, **sampling)
        for (category, _), answer, count in zip(part, answers, counts, strict=True):
            each.append(round(count.mean_acceptance_length, 3))
            for name in (category, "all"):
                sums[name].add(count)
                tokens[name] += len(answer)
    table = {
        name: {
            "tokens": tokens[name],
            "passes_with_drafts": count.num_drafts,
            "drafted": count.num_draft_tokens,
            "accepted": count.num_accepted_tokens,
            "mean_acceptance_length": round(count.mean_acceptance_length, 3),
            "tokens_a_pass": round(tokens[name] / (tokens[name] - count.num_accepted_tokens), 3),
            "passes_by_proposer": {proposer: part.num_drafts for proposer, part in count.by_proposer.items()},
        }
        for name, count in sums.items()
    }
    return {"by_category": table, "mean_acceptance_length_of_each_prompt": each}


def speed(sides: dict[str, tuple[LLM, str | None]], prompts: list[Prompt], batch: int, most: int) -> dict[str, Any]:
    """All sides in turn over batches of `batch`; raw seconds, and the ratios of the sums with bootstrap intervals."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    tokens, same = 0, True
    order = list(sides)
    for llm, proposer in sides.values():
        run(llm, prompts[:batch], proposer, temperature=0.0, max_tokens=8)  # what only a first batch pays
    for start in range(0, len(prompts) - batch + 1, batch):
        part, answers = prompts[start : start + batch], {}
        for name in order:
            llm, proposer = sides[name]
            took, answers[name], _ = run(llm, part, proposer, temperature=0.0, max_tokens=most)
            seconds[name].append(round(took, 4))
        same &= all(answer == answers["plain"] for answer in answers.values())
        tokens += sum(map(len, answers["plain"]))
        order.reverse()  # none is always last
    pairs = [("plain", name) for name in sides if name != "plain"]
    pairs += [("draft", name) for name in sides if name in ("ngram", "auto") and "draft" in sides]
    return {
        "sequences": batch,
        "seconds": seconds,
        "tokens": tokens,
        "tokens_per_second": {name: round(tokens / sum(values), 2) for name, values in seconds.items()},
        "ratios": {
            f"{other}/{one}": {
                "ratio": round(sum(seconds[one]) / sum(seconds[other]), 3),
                "95": bootstrap(seconds[one], seconds[other]),
            }
            for one, other in pairs
        },
        "same_text": same,
    }


def bootstrap(plain: list[float], draft: list[float], times: int = 2000) -> tuple[float, float]:
    """The middle 95 % of the ratio over prompts drawn again."""
    chance, pairs = random.Random(0), list(zip(plain, draft, strict=True))
    ratios = []
    for _ in range(times):
        drawn = chance.choices(pairs, k=len(pairs))
        ratios.append(sum(p for p, _ in drawn) / sum(d for _, d in drawn))
    cuts = statistics.quantiles(ratios, n=40)
    return round(cuts[0], 3), round(cuts[-1], 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--draft", default="smollm2-135m-instruct-draft", help="a name, a directory, or ngram")
    parser.add_argument("--num-speculative-tokens", type=int, default=5)
    parser.add_argument("--per-category", type=int, default=5)
    parser.add_argument("--limit", type=int, help="so many prompts in all, to try the script")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--proposers", help="draft,ngram,auto: some of them; default: what the draft is")
    parser.add_argument("--adaptive", action="store_true", help="K follows load and acceptance, as a server's does")
    parser.add_argument("--batches", default="1,8", help="sequences of the speed comparison; empty: none")
    parser.add_argument("--name", default="draft-acceptance")
    args = parser.parse_args()

    common: dict[str, Any] = {"model": args.model, "dtype": args.dtype, "enable_prefix_caching": False}
    key = "method" if args.draft == "ngram" else "model"
    speculation = {
        key: args.draft, "num_speculative_tokens": args.num_speculative_tokens, "adaptive": args.adaptive
    }  # fmt: skip
    proposers = args.proposers.split(",") if args.proposers else ["ngram" if args.draft == "ngram" else "draft"]
    draft = LLM(**common, max_num_seqs=8, speculative_config=speculation)
    prompts = encode(draft, choose(args.prompts, args.per_category))
    random.Random(0).shuffle(prompts)  # batches of mixed categories
    prompts = prompts[: args.limit]
    options = ("model", "draft", "num_speculative_tokens", "adaptive", "max_tokens", "dtype")
    results: dict[str, Any] = {
        "prompts": args.prompts.name,
        "num_prompts": len(prompts),
        "num_categories": len({category for category, _ in prompts}),
        **{name: getattr(args, name) for name in options},
        "acceptance": {},
        "speed": {},
    }
    for law, sampling in LAWS.items():
        results["acceptance"][law] = {}
        for proposer in proposers:
            found = acceptance(draft, prompts, proposer, {**sampling, "max_tokens": args.max_tokens}, batch=8)
            results["acceptance"][law][proposer] = found
            for name, row in sorted(found["by_category"].items(), key=lambda item: (item[0] == "all", item[0])):
                print(
                    f"{law:28s} {proposer:6s} {name:16s} {row['tokens_a_pass']:5.2f} tokens a pass "
                    f"({row['mean_acceptance_length']:.2f} where there were drafts), {row['tokens']} tokens"
                )
            record(args.name, results)  # after every part: a run that is cut short keeps what it measured
    if args.batches:
        sides: dict[str, tuple[LLM, str | None]] = {"plain": (LLM(**common, max_num_seqs=8), None)}
        sides |= {proposer: (draft, proposer) for proposer in proposers}
        for batch in map(int, args.batches.split(",")):
            if batch > len(prompts):
                print(f"{batch} sequences: only {len(prompts)} prompts; left out")
                continue
            result = speed(sides, prompts, batch, args.max_tokens)
            results["speed"][str(batch)] = result
            print(f"{batch} sequences: tok/s {result['tokens_per_second']}, same text: {result['same_text']}")
            for pair, found in result["ratios"].items():
                print(f"    {pair}: {found['ratio']} ({found['95'][0]} to {found['95'][1]})")
            record(args.name, results)
    print(f"recorded in {record(args.name, results)}")


if __name__ == "__main__":
    main()
