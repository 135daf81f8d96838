"""Seconds of a pass of one model, and of a step of a pair, from bytes, operations and starts.

A product reads its weights and multiplies; the two overlap in part, and each waits for the kernel before it:

    start + (read^p + multiply^p)^(1/p),   read = bytes / bandwidth,   multiply = 2·rows·outputs·inputs / rate

with p = 2.5, so that neither a sum nor a maximum is claimed. A product too small to give every multiprocessor a tile of
64 x 64 multiplies at the rate of those that have one. Attention reads the cache of every row and multiplies as well;
what it adds to that is linear in the number of positions, which page.py relies on. Sampling is bytes of the vocabulary.

A step is K passes of the draft, one of the target over K+1 tokens a row, and the decision.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, log2

from paceline.capacity.efficiency import CONSTANTS, Efficiency
from paceline.capacity.hardware import Gpu
from paceline.capacity.pair import DTYPE_BYTES, PlannedModel, Product

_TILE = 64
_LAUNCHES_A_LAYER = 9  # models/fused.py
_STEP_KERNELS, _PASS_KERNELS = 60, 12  # tiny kernels of speculative/captured.py: a step's own, and a draft pass's
_LAW_KERNELS = 3
_GREEDY_BYTES, _RANDOM_BYTES = 6, 15  # of a row of logits, for each token of the vocabulary: law and draw
_ACCEPT = 5e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What the passes run on. `tp`: ranks that share each model."""

    gpu: Gpu
    efficiency: Efficiency = field(default_factory=Efficiency)
    tp: int = 1
    draft_tp: int = 1
    is_random: bool = False  # sampled, temperature above 0

    @property
    def bandwidth(self) -> float:
        return self.gpu.bandwidth * self.efficiency.read


@dataclass(frozen=True, slots=True)
class PassSeconds:
    products: float
    small_kernels: float
    attention: float
    head: float
    exchange: float  # between ranks

    @property
    def total(self) -> float:
        return self.products + self.small_kernels + self.attention + self.head + self.exchange


@dataclass(frozen=True, slots=True)
class StepSeconds:
    draft: float
    verify: float
    accept: float
    gap: float

    @property
    def total(self) -> float:
        return self.draft + self.verify + self.accept + self.gap


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """`rows` sequences of `queries` tokens each; a row's last token sees `positions`."""

    rows: int
    queries: int = 1
    positions: float
    scored: int  # rows of the head
    is_prefill: bool = False

    @property
    def tokens(self) -> int:
        return self.rows * self.queries


def step_seconds(
    setup: Setup, target: PlannedModel, draft: PlannedModel | None, *, rows: int, k: int, positions: float
) -> StepSeconds:
    """A decoding step in which every row has K drafts, captured. Without a draft model K above 0 is n-gram: it drafts
    on the host for nothing, but its steps are eager, so that the host's launches are a floor."""
    drafting = draft_seconds(setup, draft, rows=rows, k=k, positions=positions) if draft is not None and k else 0.0
    verify = pass_seconds(
        setup, target, Pass(rows=rows, queries=k + 1, positions=positions, scored=rows * (k + 1)), setup.tp
    )
    verifying = verify.total if draft is not None or not k else max(verify.total, _launch_seconds(target))
    vocabulary = target.architecture.vocab_size
    tiny = _STEP_KERNELS * CONSTANTS["torch_kernel"]
    accept = _law_seconds(setup, rows * (k + 1), vocabulary) + tiny + (_ACCEPT if k else 0.0)
    return StepSeconds(drafting, verifying, accept, setup.efficiency.step_gap)


def draft_seconds(setup: Setup, draft: PlannedModel, *, rows: int, k: int, positions: float) -> float:
    """K passes, the first of two tokens a row, each with its law and draw."""
    first = pass_seconds(setup, draft, Pass(rows=rows, queries=2, positions=positions, scored=rows), setup.draft_tp)
    other = pass_seconds(setup, draft, Pass(rows=rows, positions=positions, scored=rows), setup.draft_tp)
    each = _law_seconds(setup, rows, draft.architecture.vocab_size) + _PASS_KERNELS * CONSTANTS["torch_kernel"]
    return first.total + (k - 1) * other.total + k * each


def pass_seconds(setup: Setup, model: PlannedModel, work: Pass, tp: int) -> PassSeconds:
    products = sum(product.count * product_seconds(setup, product, work.tokens, tp) for product in model.products)
    return PassSeconds(
        products=products,
        small_kernels=_small_kernels(setup, model, work.tokens, tp),
        attention=_attention(setup, model, work, tp),
        head=product_seconds(setup, model.head, work.scored, tp),
        exchange=_exchange(setup, model, work, tp),
    )


def prefill_seconds(
    setup: Setup, target: PlannedModel, draft: PlannedModel | None, *, tokens: int, most_tokens: int
) -> float:
    """Both models over a prompt of `tokens`, in chunks of `most_tokens`; eager, so the host's launches are a floor."""
    whole, rest = divmod(tokens, most_tokens)
    seconds = 0.0
    for model, tp in ((target, setup.tp), (draft, setup.draft_tp)):
        if model is not None:
            seconds += _whole_chunks(setup, model, most_tokens, whole, tp) if whole else 0.0
            seconds += max(_chunk(setup, model, rest, tokens, tp), _launch_seconds(model)) if rest else 0.0
    return seconds


def history_seconds(setup: Setup, target: PlannedModel, draft: PlannedModel | None) -> float:
    """What both models' attention takes for one token of a prompt to look at one position that the prefix cache has."""
    return sum(
        model.architecture.num_layers * _prefill_attention(setup, model, 1.0, tp)
        for model, tp in ((target, setup.tp), (draft, setup.draft_tp))
        if model is not None
    )


def _chunk(setup: Setup, model: PlannedModel, chunk: int, positions: int, tp: int) -> float:
    work = Pass(rows=1, queries=chunk, positions=positions, scored=1, is_prefill=True)
    return pass_seconds(setup, model, work, tp).total


def _whole_chunks(setup: Setup, model: PlannedModel, chunk: int, count: int, tp: int) -> float:
    """Of `count` chunks, one after the other. A chunk's time is linear in the positions before it, so that thousands
    of small chunks are a sum in closed form: the first of them at the floor of the host's launches."""
    floor, first = _launch_seconds(model), _chunk(setup, model, chunk, chunk, tp)
    slope = _chunk(setup, model, chunk, 2 * chunk, tp) - first
    slow = 0 if first >= floor else count if slope <= 0 else min(count, ceil((floor - first) / slope))
    others = count - slow
    return slow * floor + others * first + slope * others * (slow + count - 1) / 2


def _launch_seconds(model: PlannedModel) -> float:
    """Of the host, for a pass outside of a graph."""
    return (model.architecture.num_layers * _LAUNCHES_A_LAYER + _STEP_KERNELS) * CONSTANTS["launch"]


def product_seconds(setup: Setup, product: Product, rows: int, tp: int = 1) -> float:
    """One product on one rank."""
    outputs, inputs = (product.outputs, product.inputs // tp) if product.is_summed else (
        product.outputs // tp, product.inputs,
    )  # fmt: skip
    read = product.weight_bytes / tp / setup.bandwidth
    rate = setup.gpu.flops(is_fp8=product.is_fp8) * setup.efficiency.compute
    tiles = outputs / _TILE * max(1.0, rows / _TILE)
    idle = max(1.0, setup.gpu.multiprocessors / tiles)
    return setup.efficiency.product_start + _overlapped(read, 2.0 * rows * outputs * inputs / rate * idle)


def _overlapped(read: float, multiply: float) -> float:
    p = CONSTANTS["roofline_exponent"]
    return float((read**p + multiply**p) ** (1 / p))


def _small_kernels(setup: Setup, model: PlannedModel, tokens: int, tp: int) -> float:
    """Two norms with quantisation, the activation, rotary embedding with the cache's write; of every layer."""
    arch, efficiency = model.architecture, setup.efficiency
    row_bytes = 14 * arch.hidden_size + 5 * arch.intermediate_size / tp + 4 * (arch.q_size + 2 * arch.kv_size) / tp
    moved = _overlapped(row_bytes / efficiency.program_bandwidth, tokens * row_bytes / setup.bandwidth)
    return arch.num_layers * (4 * efficiency.small_kernel_start + moved)


def _attention(setup: Setup, model: PlannedModel, work: Pass, tp: int) -> float:
    arch, efficiency = model.architecture, setup.efficiency
    if work.is_prefill:
        seconds = _prefill_attention(setup, model, work.tokens * (work.positions - work.tokens / 2), tp)
        return arch.num_layers * (efficiency.attention_start + seconds)
    peak = setup.gpu.flops(is_fp8=False)
    kv_heads = model.kv_heads(tp)
    group = arch.num_heads // arch.num_kv_heads
    key_bytes = 2 * kv_heads * arch.head_dim * model.kv_number_bytes
    read = work.rows * work.positions * key_bytes / setup.bandwidth
    padded = 16 * ceil(work.queries * group / 16)
    multiplied = 4.0 * work.rows * padded * arch.head_dim * kv_heads * work.positions
    waves = work.rows * kv_heads / setup.gpu.multiprocessors * CONSTANTS["attention_wave"]
    moved = _overlapped(read, multiplied / (peak * CONSTANTS["attention_compute"]))
    return arch.num_layers * (efficiency.attention_start + efficiency.attention * (waves + moved))


def _prefill_attention(setup: Setup, model: PlannedModel, pairs: float, tp: int) -> float:
    """Of one layer; `pairs`: of a query and a key that it sees."""
    flops = 4.0 * pairs * model.architecture.q_size / tp
    return flops / (setup.gpu.flops(is_fp8=False) * CONSTANTS["prefill_attention"])


def _exchange(setup: Setup, model: PlannedModel, work: Pass, tp: int) -> float:
    """Two sums a layer over all ranks, and the logits gathered once."""
    if tp == 1:
        return 0.0
    arch = model.architecture
    sums = 2 * arch.num_layers * _all_reduce(setup, work.tokens * arch.hidden_size * DTYPE_BYTES, tp)
    return sums + _all_reduce(setup, work.scored * model.head.outputs * DTYPE_BYTES / 2, tp)


def _all_reduce(setup: Setup, num_bytes: float, tp: int) -> float:
    """A gather moves half of what a sum does."""
    one_way = setup.gpu.interconnect_gb_s * 1e9 / 2 * setup.efficiency.link
    return setup.efficiency.all_reduce_start * log2(tp) + 2 * (tp - 1) / tp * num_bytes / one_way


def _law_seconds(setup: Setup, rows: int, vocabulary: int) -> float:
    each = _RANDOM_BYTES if setup.is_random else _GREEDY_BYTES
    start = _LAW_KERNELS * CONSTANTS["torch_kernel"]
    return start + setup.efficiency.sampling * rows * vocabulary * each / setup.bandwidth
