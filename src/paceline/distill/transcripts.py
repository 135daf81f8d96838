"""`python -m paceline.distill.transcripts TARGET PROMPTS OUT`: what the target alone writes, for report.py.

PROMPTS has a JSON object a line with `category` and `turns` (Spec-Bench's form); first turns go through the
chat template. Transformers generates, so that the figures do not depend on the engine that they judge.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch


def write_transcripts(
    model: Any,
    tokenizer: Any,
    prompts: list[dict[str, Any]],
    out: Path,
    *,
    max_new_tokens: int,
    options: dict[str, Any],
) -> None:
    """Batches of twelve of similar length, padded on the left."""
    end = model.config.eos_token_id
    for prompt in prompts:
        messages = [{"role": "user", "content": prompt["turns"][0]}]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        prompt["ids"] = tokenizer.encode(text, add_special_tokens=False)
    prompts = sorted(prompts, key=lambda prompt: len(prompt["ids"]))
    with out.open("w") as file:
        for start in range(0, len(prompts), 12):
            batch = prompts[start : start + 12]
            width = len(batch[-1]["ids"])
            ids = torch.tensor([[end] * (width - len(p["ids"])) + p["ids"] for p in batch])
            mask = torch.tensor([[0] * (width - len(p["ids"])) + [1] * len(p["ids"]) for p in batch])
            outputs = model.generate(
                input_ids=ids.to(model.device), attention_mask=mask.to(model.device), max_new_tokens=max_new_tokens,
                eos_token_id=end, pad_token_id=end, **options,
            )[:, width:].tolist()  # fmt: skip
            for prompt, output in zip(batch, outputs, strict=True):
                output = output[: output.index(end) + 1] if end in output else output
                line = {"category": prompt["category"], "prompt": prompt["ids"], "output": output}
                file.write(json.dumps(line) + "\n")


def main() -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    options = argparse.ArgumentParser(prog="python -m paceline.distill.transcripts", description=__doc__)
    options.add_argument("target", type=Path)
    options.add_argument("prompts", type=Path)
    options.add_argument("out", type=Path)
    options.add_argument("--temperature", type=float, default=0.0)
    options.add_argument("--top-p", type=float, default=1.0)
    options.add_argument("--max-new-tokens", type=int, default=128)
    options.add_argument("--seed", type=int, default=0)
    chosen = options.parse_args()
    torch.manual_seed(chosen.seed)
    model = AutoModelForCausalLM.from_pretrained(chosen.target, dtype=torch.float32)
    sampling: dict[str, Any] = {"do_sample": False}
    if chosen.temperature > 0:
        sampling = {"do_sample": True, "temperature": chosen.temperature, "top_p": chosen.top_p, "top_k": 0}
    prompts = [json.loads(line) for line in chosen.prompts.read_text().splitlines()]
    with torch.inference_mode():
        write_transcripts(
            model, AutoTokenizer.from_pretrained(chosen.target), prompts, chosen.out,
            max_new_tokens=chosen.max_new_tokens, options=sampling,
        )  # fmt: skip


if __name__ == "__main__":
    main()
