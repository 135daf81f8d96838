"""Paceline without speculation against transformers' generate on the same CPU, model, dtype and prompts.

    python benchmarks/cpu_vs_transformers.py [--prompts FILE.jsonl] [--batches 1,8,32] [--new-tokens 64] [--rounds 3]

The two take turns in one process (A B A B …), because a shared CPU drifts; the figure to read is the ratio.
EOS is ignored so that both emit the same number of tokens; the prefix cache is off so that both prefill.
Then, against Paceline's own plain decoding: n-gram on prompts that repeat, and a draft of random weights.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import load_prompts, record
from transformers import AutoModelForCausalLM, AutoTokenizer

from paceline import LLM, SamplingParams
from paceline.hub import resolve

Ids = list[list[int]]


def transformers_runner(path: Path, dtype: torch.dtype) -> Callable[[Ids, int], list[list[int]]]:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()

    @torch.inference_mode()
    def run(prompts: Ids, new_tokens: int) -> list[list[int]]:
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
        output = model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
            do_sample=False,
            pad_token_id=0,
        )
        return [row[width:].tolist() for row in output]

    return run


class PacelineRunner:
    def __init__(self, model: str, dtype: str, **arguments: Any) -> None:
        self.llm = LLM(model=model, dtype=dtype, enable_prefix_caching=False, max_num_seqs=32, **arguments)

    def __call__(self, prompts: Ids, new_tokens: int) -> list[list[int]]:
        params = SamplingParams(temperature=0.0, max_tokens=new_tokens, ignore_eos=True, detokenize=False)
        outputs = self.llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
        return [list(o.outputs[0].token_ids) for o in outputs]

    def split(self) -> dict[str, float]:
        """Where the time of all runs so far went, in ms a step, and tokens per target pass with drafts."""
        stats = self.llm.stats()
        seconds = {
            "draft": stats.draft_seconds,
            "verify": stats.verify_seconds,
            "accept": stats.accept_seconds,
            "schedule and commit": stats.schedule_seconds,
        }
        split = {f"{name} ms a step": round(1000 * value / stats.num_steps, 2) for name, value in seconds.items()}
        return {**split, "mean_acceptance_length": round(stats.speculation.mean_acceptance_length, 3)}


def one_by_one(run: Callable[[Ids, int], list[list[int]]]) -> Callable[[Ids, int], list[list[int]]]:
    """Prompts in turn, as one user sends them."""
    return lambda prompts, new_tokens: [run([prompt], new_tokens)[0] for prompt in prompts]


def compare(a: Callable[..., Any], b: Callable[..., Any], prompts: Ids, new_tokens: int, rounds: int) -> dict[str, Any]:
    """Seconds of each, in turn, after one uncounted round; ratio = median of b / a, pair by pair."""
    seconds: dict[str, list[float]] = {"a": [], "b": []}
    same = a(prompts, new_tokens) == b(prompts, new_tokens)
    for _ in range(rounds):
        for name, run in (("a", a), ("b", b)):
            started = time.perf_counter()
            run(prompts, new_tokens)
            seconds[name].append(round(time.perf_counter() - started, 3))
    tokens = len(prompts) * new_tokens
    return {
        "seconds": seconds,
        "tok_s": {name: round(tokens / statistics.median(values), 1) for name, values in seconds.items()},
        "ratio": round(statistics.median(y / x for x, y in zip(seconds["a"], seconds["b"], strict=True)), 3),
        "same_text": same,
    }


def random_draft(folder: Path, target: Path) -> Path:
    """The default draft's shape with random weights and the target's tokenizer: it agrees with nothing."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(target)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        tie_word_embeddings=True,
        max_position_embeddings=8192,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def show(name: str, result: dict[str, Any]) -> None:
    a, b = result["tok_s"]["a"], result["tok_s"]["b"]
    print(f"{name:44s} {a:8.1f} {b:8.1f} {result['ratio']:7.2f}  {result['same_text']}")


def compare_with_plain(
    name: str, drafted: PacelineRunner, prompts: Ids, args: argparse.Namespace, results: dict[str, Any]
) -> None:
    """A proposer against none, one prompt at a time, with the split of both."""
    plain = PacelineRunner(args.model, args.dtype)
    result = compare(one_by_one(drafted), one_by_one(plain), prompts, args.new_tokens, args.rounds)
    result["split"] = {"a": drafted.split(), "b": plain.split()}
    results[f"{name}_vs_plain"] = result
    show(f"{name} (A), plain (B), {len(prompts)} prompts in turn", result)
    print("  ", result["split"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--draft", default="smollm2-135m-instruct-draft")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-prompt-tokens", type=int, default=256)
    args = parser.parse_args()

    import tempfile

    name = f"cpu-vs-transformers-{args.dtype}"
    path = resolve(args.model)
    tokenizer = AutoTokenizer.from_pretrained(path)
    chats = [[{"role": "user", "content": text}] for text in load_prompts(args.prompts)]
    ids = [tokenizer.apply_chat_template(c, add_generation_prompt=True, return_dict=False) for c in chats]
    ids = [p for p in ids if len(p) <= args.max_prompt_tokens]
    ids = ids[:: max(1, len(ids) // 32)]  # over all categories
    peer = transformers_runner(path, getattr(torch, args.dtype))
    plain = PacelineRunner(args.model, args.dtype)
    results: dict[str, Any] = {"dtype": args.dtype, "prompts": str(args.prompts and args.prompts.name)}
    print(f"{'':44s} {'A tok/s':>8s} {'B tok/s':>8s} {'B / A':>7s}  same text")
    for batch in map(int, args.batches.split(",")):
        prompts = (ids * batch)[:batch]
        result = compare(plain, peer, prompts, args.new_tokens, args.rounds)
        results[f"plain_vs_transformers_batch_{batch}"] = result
        show(f"Paceline plain (A), transformers (B), {batch:2d}", result)
        record(name, results)  # after every part: a run that is cut short keeps what it measured
    repeating = [tokenizer.encode("The quick brown fox jumps over the lazy dog. It was a sunny day in May. " * 6)]
    ngram = PacelineRunner(args.model, args.dtype, speculative_config={"method": "ngram", "num_speculative_tokens": 5})
    result = compare(ngram, plain, repeating, 128, args.rounds)
    results["ngram_vs_plain_repeating"] = result
    show("n-gram (A), plain (B), a prompt that repeats", result)
    record(name, results)
    with tempfile.TemporaryDirectory() as folder:
        config = {"model": str(random_draft(Path(folder), path)), "num_speculative_tokens": 5}
        useless = PacelineRunner(args.model, args.dtype, speculative_config=config)
    compare_with_plain("random_draft", useless, ids[::16], args, results)
    drafted = PacelineRunner(args.model, args.dtype, speculative_config={"model": args.draft})
    record(name, results)
    compare_with_plain("default_draft", drafted, ids[::4], args, results)
    print(f"recorded in {record(name, results)}")


if __name__ == "__main__":
    main()
