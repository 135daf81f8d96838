"""`paceline bench offline`: the real engine, without server and tokenizer, over batches and numbers of drafts.

    ceiling = engine_ceiling(plan.config, bandwidth)      before anything is loaded
    for case in run_cases(plan, sweep, acceptance, say): …

An engine is gone before the next one is made.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from paceline.bench.acceptance import SyntheticAcceptance
from paceline.bench.ceiling import Ceiling, ModelBytes, model_bytes
from paceline.bench.measure import Run, measure
from paceline.bench.sweep import EnginePlan, Sweep
from paceline.config import EngineConfig, ModelConfig
from paceline.engine.engine import Engine

_WARM_UP_TOKENS = 8
_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the table: a batch and a K, and the runs of it. `adaptive`: K was chosen for each step, up to k."""

    batch: int
    k: int
    has_draft: bool  # loaded, whether K is above 0 or not
    acceptance_rate: float | None  # synthetic, conditional; None: as the models are
    runs: list[Run]
    adaptive: bool = False

    @property
    def fixed_k(self) -> int | None:
        return None if self.adaptive else self.k

    @property
    def words(self) -> str:
        return "K adaptive" if self.adaptive else f"K={self.k}"

    @property
    def median(self) -> Run:
        """The run with the median decode speed (the slower one of two in the middle)."""
        ordered = sorted(self.runs, key=lambda run: run.decode_tokens_per_second)
        return ordered[(len(ordered) - 1) // 2]


def run_cases(
    plan: EnginePlan,
    sweep: Sweep,
    acceptance: SyntheticAcceptance | None,
    *,
    say: Say,
    described: Callable[[dict[str, str]], None],
) -> Iterator[Case]:
    """Batch by batch; the Ks of a batch take turns, so that a slow minute of the machine is nobody's alone.

    `described` gets the resolved configuration once the engine stands.
    """
    from paceline.build import assemble_engine

    config = plan.config
    say(f"Loading {config.model.name}" + (f" and {config.draft.name}" if config.draft else ""))
    engine = assemble_engine(config, None)
    # As a server's engine does: to go through all of it takes up to a tenth of a second, in which no step starts.
    gc.collect()
    gc.freeze()
    try:
        described(engine.describe())
        for batch in sweep.batches:
            yield from _cases(engine, batch, plan, sweep, acceptance, say)
    finally:
        engine.shutdown()
        del engine
        gc.unfreeze()
        _free(config.device)


def _cases(
    engine: Engine, batch: int, plan: EnginePlan, sweep: Sweep, acceptance: SyntheticAcceptance | None, say: Say
) -> list[Case]:
    rates = {k: acceptance.conditional_rate(k) if acceptance and k else None for k in plan.ks}
    cases = [Case(batch, k, plan.has_draft, rates[k], []) for k in plan.ks]
    if plan.adaptive:
        rate = acceptance.conditional_rate(plan.most) if acceptance else None
        cases.append(Case(batch, plan.most, plan.has_draft, rate, [], adaptive=True))
    for case in cases:
        measure(engine, sweep.workload(batch, max(_WARM_UP_TOKENS, 2 * (case.k + 1))), case.fixed_k)
    for repeat in range(sweep.repeats):
        for case in cases:
            run = measure(engine, sweep.workload(batch), case.fixed_k)
            case.runs.append(run)
            say(f"batch {batch}, {case.words}, run {repeat + 1}: {run.decode_tokens_per_second:,.1f} tok/s")
    return cases


def _free(device: str) -> None:
    """What an engine held is given back before another one measures what is free."""
    gc.collect()
    if device == "cuda":
        import torch

        torch.cuda.empty_cache()


def engine_ceiling(config: EngineConfig, bandwidth: float) -> Ceiling:
    """`bandwidth` in bytes a second."""
    draft = None
    if config.draft is not None:
        draft = model_ceiling(config.draft, config.device, config.draft_tensor_parallel_size)
    return Ceiling(model_ceiling(config.model, config.device, config.tensor_parallel_size), draft, bandwidth)


def model_ceiling(model: ModelConfig, device: str, num_ranks: int = 1) -> ModelBytes:
    """The bytes of a model as it will lie in the memory of the first of `num_ranks` ranks, which has the largest
    share, from its config.json."""
    import torch

    from paceline.layers.linear import has_fp8_products
    from paceline.models.architecture import read_architecture
    from paceline.models.quantization import choose_formats
    from paceline.models.sharding import shard_model

    architecture = read_architecture(model.path)
    formats = choose_formats(
        architecture.quantization,
        quantize=model.quantization == "fp8",
        quantize_lm_head=model.quantize_lm_head,
        tied_embeddings=architecture.tied_embeddings,
        has_fp8_products=has_fp8_products(torch.device(device)),
    )
    size = _DTYPE_BYTES[model.dtype]
    shard = shard_model(architecture, 0, num_ranks)
    return model_bytes(
        shard.local,
        formats,
        head_rows=shard.head_rows,
        dtype_bytes=size,
        kv_bytes=1 if model.kv_cache_dtype == "fp8" else size,
    )
