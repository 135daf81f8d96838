"""The engine's memory plan for a card that is not here: the same function, fed with what the engine would measure.

Weights and both pools are exact. Activations, graphs and the driver's own share are measured by the engine at start;
here they are counted from the tensors that the largest steps hold (worker/profile.py) and from constants.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.capacity.hardware import Gpu
from paceline.capacity.pair import DTYPE_BYTES, PlannedModel
from paceline.config import CacheConfig, EngineConfig, SchedulerConfig, SpeculativeConfig
from paceline.errors import ConfigurationError
from paceline.plan import MAX_SCORED_TOKENS
from paceline.runner.cuda_graphs import padded_sizes
from paceline.step_forms import StepForms
from paceline.worker.memory_plan import DeviceMemory, MemoryPlan, plan_memory

CONTEXT_BYTES = 900 << 20  # CUDA context, loaded kernels, cuBLAS workspaces: what a device has in use beside tensors
# As the engine counts them; a test holds these to its own (speculative/captured.py, worker/profile.py, worker.py).
_GRAPH_BYTES = 4 << 20  # of each captured graph
_POOL_MARGIN = 1.05
_MARGIN = 1.03  # of the allocator
_EAGER_LAW_BYTES = 24  # of a token at a place in layers/sampling.py: six float32 copies stand at once under top_p
_DRAFT_COUNTS = (0, 1, 2, 3, 4, 5, 7)  # captured up to K


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """As the engine's options of the same names."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int = 2048
    block_size: int = 16
    gpu_memory_utilization: float = 0.9


def engine_config(target: PlannedModel, draft: PlannedModel | None, k: int, limits: Limits, tp: int) -> EngineConfig:
    """`k`: the largest that the engine is made for; 0: no draft is loaded."""
    speculative = None
    if k and draft is not None:
        speculative = SpeculativeConfig(method="draft_model", num_speculative_tokens=k, draft=draft.config)
    elif k:
        speculative = SpeculativeConfig(method="ngram", num_speculative_tokens=k)
    return EngineConfig(
        model=target.config,
        speculative=speculative,
        cache=CacheConfig(block_size=limits.block_size, memory_utilization=limits.gpu_memory_utilization),
        scheduler=SchedulerConfig(
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=max(limits.max_num_batched_tokens, limits.max_num_seqs),
        ),
        tensor_parallel_size=tp,
        device="cuda",
    )


def plan_pair(
    gpu: Gpu,
    target: PlannedModel,
    draft: PlannedModel | None,
    k: int,
    limits: Limits,
    *,
    tp: int = 1,
    draft_tp: int = 1,
) -> MemoryPlan:
    """Of one rank. Raises ConfigurationError where weights, or one sequence of max_model_len, do not fit."""
    config = engine_config(target, draft, k, limits, tp)
    draft = draft if k else None
    weights = target.weight_bytes(tp, limits.max_model_len)
    draft_weights = draft.weight_bytes(draft_tp, limits.max_model_len) if draft else 0
    if weights + draft_weights + CONTEXT_BYTES > gpu.memory_bytes:
        raise ConfigurationError(
            f"{gpu.name}: weights of {(weights + draft_weights) / 1e9:,.1f} GB a GPU (TP={tp}) do not fit into its "
            f"{gpu.memory_bytes / 1e9:,.1f} GB."
        )
    memory = DeviceMemory(
        free_bytes=gpu.memory_bytes - CONTEXT_BYTES - weights - draft_weights,
        total_bytes=gpu.memory_bytes,
        activation_bytes=_activation_bytes(target, draft, k, limits, tp),
        graph_bytes=_graph_bytes(target, draft, k, limits, tp),
    )
    return plan_memory(
        config,
        target_weight_bytes=weights,
        draft_weight_bytes=draft_weights,
        target_bytes_per_block=_block_bytes(target, limits, tp),
        draft_bytes_per_block=_block_bytes(draft, limits, draft_tp) if draft else 0,
        memory=memory,
    )


def room_for_positions(plan: MemoryPlan, limits: Limits) -> int:
    """That a cache of all the memory left would hold, over all sequences; the plan's own may end at max_model_len."""
    left = plan.limit_bytes - plan.planned_bytes + plan.pool_bytes
    num_blocks = left // (plan.target_bytes_per_block + plan.draft_bytes_per_block)
    return max(num_blocks - 1, 0) * limits.block_size


def _block_bytes(model: PlannedModel, limits: Limits, tp: int) -> int:
    arch = model.architecture
    return 2 * model.kv_heads(tp) * arch.head_dim * arch.num_layers * limits.block_size * model.kv_number_bytes


def _activation_bytes(target: PlannedModel, draft: PlannedModel | None, k: int, limits: Limits, tp: int) -> int:
    """The larger of a full prefill step and a full eager decode step whose rows are sampled."""
    vocabulary = target.architecture.vocab_size
    prefill = max(_hidden_bytes(model, limits.max_num_batched_tokens, tp) for model in (target, draft) if model)
    scored = min(MAX_SCORED_TOKENS, limits.max_model_len - 1)
    prefill += scored * vocabulary * (DTYPE_BYTES + 4 + 4 + 4)  # logits, in float32, log-softmax and a copy
    places = limits.max_num_seqs * (k + 1)
    decode = places * vocabulary * _EAGER_LAW_BYTES + limits.max_num_seqs * k * vocabulary * 4
    return int(max(prefill, decode) * _MARGIN)


def _hidden_bytes(model: PlannedModel, tokens: int, tp: int) -> int:
    """Residual, its quantised copy, and the widest product with what is made of it."""
    arch = model.architecture
    widest = (2 * arch.intermediate_size * DTYPE_BYTES + arch.intermediate_size) // tp
    return tokens * (arch.hidden_size * (2 * DTYPE_BYTES + 1) + widest)


def _graph_bytes(target: PlannedModel, draft: PlannedModel | None, k: int, limits: Limits, tp: int) -> int:
    """One pool that all graphs share, as large as the largest step, and each graph's own records."""
    drafting = k if draft is not None else 0
    counts = {count for count in _DRAFT_COUNTS if count <= drafting} | {drafting}
    vocabulary, rows = target.architecture.vocab_size, limits.max_num_seqs
    laws = rows * (drafting + 1) * vocabulary * (DTYPE_BYTES + 4) + rows * drafting * vocabulary * 4
    peak = laws + _hidden_bytes(target, rows * (drafting + 1), tp)
    forms = StepForms.of(padded_sizes(rows), sorted(counts))
    return int(peak * _POOL_MARGIN) + len(forms.all()) * _GRAPH_BYTES
