"""The memory that a step takes beside weights and pools, measured on the real thing.

`largest_steps` makes the two plans that bound it: one that reads as many tokens as a step may and scores as many, and
one in which every sequence decodes at the full K and samples at random, which holds the laws of all places at once.
They run before the pools have their size, over a pool of MIN_BLOCKS in which all rows share one block: nothing of them
is kept, and what they compute is of no interest. They also compile the kernels, which would otherwise be the first
request's lot; `short_steps` have those of them that only short chunks run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from msgspec import structs

from paceline.config import EngineConfig
from paceline.plan import MAX_SCORED_TOKENS, RowPlan, SamplingPlan, StepPlan

MIN_BLOCKS = 2  # the null block and one for everyone
_SHORT_CHUNKS = (4, 40)  # tokens
_MARGIN = 1.03  # for what the allocator cannot give back: a cached segment serves requests of about its size only
_SAMPLING = SamplingPlan(temperature=1.0, top_p=0.9, top_k=50, min_p=0.01)


def largest_steps(config: EngineConfig) -> list[StepPlan]:
    """A full prefill step and a full decode step, within what the scheduler may ever ask for."""
    return [StepPlan(step_id=0, rows=_prefill_rows(config)), StepPlan(step_id=0, rows=_decode_rows(config))]


def short_steps(config: EngineConfig) -> list[StepPlan]:
    """Steps that read little, in rows of different lengths: what a short prompt takes, or a draft that has rested and
    catches up. Attention has a program for chunks of a few tokens and one for longer ones (prefill_attention.py)."""
    longest = min(config.model.max_model_len - 1, config.scheduler.max_num_batched_tokens // 2)
    num_rows = min(2, config.scheduler.max_num_seqs)
    return [
        StepPlan(
            step_id=0,
            rows=[
                _row(config, index, max(1, min(length - index, longest)), drafts=0, reads_draft=True)
                for index in range(num_rows)
            ],
        )
        for length in _SHORT_CHUNKS
    ]


@torch.inference_mode()
def activation_bytes(execute: Callable[[StepPlan], object], plans: Iterable[StepPlan], device: torch.device) -> int:
    """The peak of these steps above what was allocated before. A GPU's only."""
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    for plan in plans:
        execute(plan)
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) - before
    torch.cuda.empty_cache()
    return int(peak * _MARGIN)


def _prefill_rows(config: EngineConfig) -> list[RowPlan]:
    budget, longest = config.scheduler.max_num_batched_tokens, config.model.max_model_len - 1
    num_rows = min(-(-budget // longest), config.scheduler.max_num_seqs)
    lengths = [min(longest, budget // num_rows)] * num_rows
    scored = [min(MAX_SCORED_TOKENS, lengths[0]), *[0] * (num_rows - 1)]
    return [
        _row(config, index, length, drafts=0, reads_draft=True, scored=scored[index])
        for index, length in enumerate(lengths)
    ]


def _decode_rows(config: EngineConfig) -> list[RowPlan]:
    num_rows = config.scheduler.max_num_seqs
    drafts = min(config.num_speculative_tokens, config.scheduler.max_num_batched_tokens // num_rows - 1)
    drafts = max(min(drafts, config.model.max_model_len - 2), 0)
    return [_row(config, index, 1, drafts=drafts, reads_draft=drafts > 0) for index in range(num_rows)]


def _row(config: EngineConfig, index: int, length: int, *, drafts: int, reads_draft: bool, scored: int = 0) -> RowPlan:
    num_blocks = -(-(length + drafts) // config.cache.block_size)
    draft = config.draft
    chunk = [0] * min(length, draft.max_model_len) if draft is not None and reads_draft else []
    return RowPlan(
        seq_id=index,
        block_table=[1] * num_blocks,
        start=0,
        token_ids=[0] * length,
        draft_chunk=chunk,
        num_draft_tokens=drafts,
        scored_token_ids=[0] * scored,
        history=[0] * length,
        sampling=structs.replace(_SAMPLING, num_prompt_logprobs=0) if scored else _SAMPLING,
    )
