"""Random answers under a grammar: a model that knows nothing says whatever it may."""

from __future__ import annotations

import random

import torch
from structured.byte_tokens import byte_tokenizer, eos_id

from paceline.plan import RowPlan, SamplingPlan
from paceline.structured.constraint import Constraint, Grammar
from paceline.structured.masks import GrammarMasks
from paceline.structured.store import GrammarStore

# Parts of characters. xgrammar takes any lead byte with any continuation: a random walk would not be Unicode.
BROKEN = frozenset(t for t in range(byte_tokenizer().vocab_size) if "\ufffd" in byte_tokenizer().decode([t]))
CLOSING = frozenset(byte_tokenizer().encode(token)[0] for token in ('"', "}", "]", '"}', "}]", ",", '":'))


def plan_row(
    constraint: Constraint, output: list[int], *, seq_id: int = 1, prompt: int = 3, **sampling: object
) -> RowPlan:
    """A row that has emitted `output` behind a prompt of `prompt` tokens."""
    grammar = Grammar(constraint=constraint, end_token_ids=(eos_id(),)).encode()
    return RowPlan(
        seq_id=seq_id,
        block_table=[],
        start=prompt + len(output) - 1,
        token_ids=[0],
        num_output_tokens=len(output),
        history=[*range(prompt), *output],
        sampling=SamplingPlan(grammar=grammar, **sampling),  # type: ignore[arg-type]
    )


def legal(mask: torch.Tensor) -> list[int]:
    return mask.nonzero().flatten().tolist()  # type: ignore[no-any-return]


def make_masks(store: GrammarStore | None = None) -> GrammarMasks:
    store = store or GrammarStore(byte_tokenizer(), [eos_id()])
    return GrammarMasks(store, byte_tokenizer().vocab_size, torch.device("cpu"))


def random_answer(constraint: Constraint, masks: GrammarMasks, seed: int, max_tokens: int = 150) -> str | None:
    """A text that the grammar allows; None if it did not end in time. Ends are taken more often as time goes on."""
    generator, output = random.Random(seed), list[int]()
    for step in range(max_tokens):
        allowed = legal(masks.masks(plan_row(constraint, output, seq_id=seed), [], 0, 1)[0])
        assert allowed, "the grammar leads nowhere"
        if eos_id() in allowed and (len(allowed) == 1 or generator.random() < 0.3):
            return byte_tokenizer().decode(output)
        whole = [token for token in allowed if token not in BROKEN and token != eos_id()]
        closing = [token for token in whole if token in CLOSING]
        choices = closing if closing and generator.random() < step / max_tokens else whole
        output.append(generator.choice(choices))
    return None


def legal_prefix(constraint: Constraint, tokens: list[int], store: GrammarStore) -> list[int]:
    """As much of `tokens` as an answer that goes on can begin with."""
    legal = tokens[: make_masks(store).num_legal(plan_row(constraint, []), tokens)]
    return legal[: legal.index(eos_id())] if eos_id() in legal else legal
