"""The draft's model card, its report as a file, and the plot; all of them say what report.json says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from paceline.distill.chart import Panel, chart
from paceline.distill.losses import LossTerm
from paceline.distill.report import ALL, markdown

Report = dict[str, Any]


def write_card(out: Path, target: str, report: Report) -> None:
    """README.md, report.json and report.svg of the draft in `out`."""
    (out / "report.svg").write_text(_plot(report))
    (out / "README.md").write_text(_card(out.name, target, report))
    (out / "report.json").write_text(json.dumps(report, indent=1) + "\n")


def acceptance_table(tallies: dict[str, Any]) -> list[list[str]]:
    """Rows of cells, the heading first: how many tokens a pass gives, for each kind of prompt and K."""
    ks = list(tallies[ALL]["tokens_per_pass"])
    rows = [["prompts", "count", "tokens", "hit", *(f"K={k}" for k in ks)]]
    for name, tally in tallies.items():
        numbers = [f"{tally['tokens_per_pass'][k]:.2f}" for k in ks]
        rows.append([name, str(tally["prompts"]), str(tally["tokens"]), f"{tally['hit']:.3f}", *numbers])
    return rows


def speed_table(report: Report) -> list[list[str]]:
    """Rows of cells: expected speed-up for each K, and the costs where they were measured."""
    rows = [["K", "tokens", "speed-up", "lowest to highest", "plain ms", "step ms", "draft ms", "verify ms"]]
    for k, speed in report["speed_up"].items():
        tokens = report["tokens_per_pass"]["greedy"][ALL]["tokens_per_pass"][k]
        measured = report["costs"].get(k)
        costs = [""] * 4
        if measured:
            turns = measured["turns_ms"]
            middle = {name: sorted(turn[name] for turn in turns)[len(turns) // 2] for name in turns[0]}
            costs = [f"{middle[name]:.2f}" for name in ("plain", "step", "draft", "verify")]
        span = f"{speed['low']:.2f} to {speed['high']:.2f}"
        rows.append([k, f"{tokens:.2f}", f"{speed['expected']:.2f}", span, *costs])
    return rows


def advice(report: Report) -> str:
    """One sentence: which K, or that the draft does not pay on this machine."""
    best = report["best_k"]
    if best == 0:
        fastest = max(report["speed_up"].values(), key=lambda speed: speed["expected"])["expected"]
        return (
            f"On this machine the draft does not pay for one sequence at a time: at best {fastest:.2f} times the plain "
            "speed. A longer run, a smaller draft or a larger target may change that."
        )
    speed = report["speed_up"][str(best)]
    noise = "" if speed["low"] > 1 else f", within the noise of {speed['low']:.2f} to {speed['high']:.2f}"
    return f"K = {best} is the fastest on this machine: {speed['expected']:.2f} times plain{noise}."


def _plot(report: Report) -> str:
    greedy, speed = report["tokens_per_pass"]["greedy"], report["speed_up"]
    ks = [int(k) for k in speed]
    lines = {name: [tally["tokens_per_pass"][str(k)] for k in ks] for name, tally in greedy.items()}
    expected = {"expected": [speed[str(k)]["expected"] for k in ks], "plain": [1.0] * len(ks)}
    bands = [(speed[str(k)]["low"], speed[str(k)]["high"]) for k in ks]
    return chart(
        [
            Panel("tokens a target pass, greedy", ks, lines, ALL),
            Panel("expected speed-up, one sequence", ks, expected, "expected", bands),
        ]
    )


def _card(name: str, target: str, report: Report) -> str:
    draft, learning, text, recipe = (report[key] for key in ("draft", "learning", "text", "recipe"))
    sampled = report["tokens_per_pass"]["sampled"]
    k = report["best_k"] or 1
    data = recipe["text"]["data_mix"]
    source = "the target itself" if data == 0 else f"the target itself and, for {data:.0%} of the text, a user's data"
    return f"""---
tags: [speculative-decoding, draft-model]
---

# {name}

A draft for speculative decoding with `{target}` as the target: {draft["parameters"] / 1e6:.1f} M parameters, \
distilled by `paceline distill`. On its own it writes nothing worth reading; it is made to be verified.

It is a plain Llama in BF16 with the target's tokenizer: hidden {draft["hidden_size"]}, {draft["num_layers"]} layers, \
{draft["num_heads"]} heads of {draft["head_dim"]}, MLP {draft["intermediate_size"]}, vocabulary \
{draft["vocab_size"]:,}, tied table.

## Use

```sh
paceline serve {target} --speculative-model PATH/{name} --num-speculative-tokens {k}
vllm serve TARGET --speculative-config '{{"method": "draft_model", "model": "PATH/{name}", \
"num_speculative_tokens": {k}}}'
```

transformers: `AutoModelForCausalLM.from_pretrained("PATH/{name}")`, as `assistant_model` of `generate`. \
PATH is the folder that holds this one, TARGET the target's own. The vLLM command follows its \
documentation and was not run here.
{_reduced_text(report)}
## What it is worth

Tokens a target pass for K drafted tokens, the first token of an answer not counted; answers of the target alone, at \
most 128 tokens, EOS honoured. `hit`: share of tokens where the draft would have been right. Prompts named chat, \
document and data were held out from the run; any others come from a file that was given for the report. Of the \
greedy answers, which Paceline wrote, {report["engine_agreement"]:.1%} of the tokens are the teacher's likeliest too.

Greedy:

{markdown(acceptance_table(report["tokens_per_pass"]["greedy"]))}

Temperature {sampled["temperature"]}, top-p {sampled["top_p"]}:

{markdown(acceptance_table(sampled["by_category"]))}

Expected speed against plain decoding, greedy, one sequence, on: {report["machine"]}; tokens a pass of all prompts. \
Costs are milliseconds of a plain step, of a step with K drafts, and of its drafting and verifying, medians of \
{len(next(iter(report["costs"].values()))["turns_ms"])} turns in which both sides ran after one another; lowest and \
highest are those of single turns; K without costs is interpolated.

{markdown(speed_table(report))}

{advice(report)}

![tokens a pass and expected speed-up for each K](report.svg)

## Recipe

- Text: written by {source}; positions of rows by kind: {_amounts(text["positions"])}. \
{text["distinct"]:,} distinct positions were learnt from.
- Learning: {learning["positions"]:,} positions in {learning["steps"]:,} steps; {recipe["batch"]} rows of \
{recipe["text"]["length"]} tokens a step, {recipe["text"]["selected"]} positions of each.
- Loss: the chosen end of the run learnt with {learning["loss"]}; before, {_losses(recipe["loss"])}.
- Optimizer: {learning["optimizer"]["matrices"]}, learning rate {learning["optimizer"]["learning_rate"]:g}, of the \
table {learning["optimizer"]["table_learning_rate"]:g}.
- Seed {recipe["seed"]}. Everything else: `recipe` in `report.json`.

Held-out text before and after (acceptance is at temperature 0.7, tokens a pass are greedy at K = 5):

{markdown(_before_and_after(learning))}
"""


def _reduced_text(report: Report) -> str:
    reduced = report["tokens_per_pass"]["reduced_head"]
    if not reduced:
        return ""
    tally = reduced["greedy"][ALL]["tokens_per_pass"]
    return (
        f"\n`reduced/` is the same draft with its head cut to {reduced['tokens']:,} tokens "
        f"({tally['5']:.2f} tokens a pass at K = 5). Paceline takes it as a draft; neither transformers nor vLLM does. "
        "(On a CPU Paceline cuts the whole draft's head in the same way when it loads it: `draft_vocab_size`.)\n"
    )


def _amounts(positions: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {kind}" for kind, count in positions.items() if count)


def _losses(terms: list[dict[str, Any]]) -> str:
    return " + ".join(str(LossTerm(**term)) for term in terms)


def _before_and_after(learning: dict[str, Any]) -> list[list[str]]:
    names = ("forward_kl", "agreement", "accepted_at_0.7", "tokens_per_pass")
    rows = [["text", *(name.replace("_", " ") for name in names)]]
    for kind, after in learning["held_out_after"].items():
        before = learning["held_out_before"].get(kind, {})
        rows.append([kind, *(f"{before.get(name, float('nan')):.3f} → {after[name]:.3f}" for name in names)])
    return rows
