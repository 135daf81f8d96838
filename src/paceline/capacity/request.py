"""What a user types, checked, as a Question: every problem is named by its option."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

from paceline.bench.acceptance import SyntheticAcceptance
from paceline.bench.bounds import Bounds
from paceline.capacity.calibration import Calibration, calibrate
from paceline.capacity.economics import Selling
from paceline.capacity.efficiency import Efficiency
from paceline.capacity.hardware import Gpu, find_gpu, load_gpus
from paceline.capacity.measurement import read_measurement
from paceline.capacity.memory import Limits
from paceline.capacity.pair import PlannedModel, read_model
from paceline.capacity.planner import MOST_SEQUENCES
from paceline.capacity.prices import USD_PER_GPU_HOUR, Price, choose_price, load_prices, own_price_note
from paceline.capacity.question import Load, Objective, Question
from paceline.capacity.serving import Workload
from paceline.errors import ConfigurationError

_DEFAULT_USERS = 32
_MOST_DRAFTS = 32
_LENGTH, _MILLISECONDS = Bounds(1, 1e7, "tokens"), Bounds(1e-3, 1e9, "milliseconds")
_SELLING = Bounds(1e-6, 1e6, "US dollars per million tokens", or_zero=True)
# Whatever a user types, by field of Request: `None` is "not given" and always allowed.
BOUNDS = {
    "users": Bounds(1, 1e9),
    "requests_per_second": Bounds(1e-6, 1e6),
    "input_len": _LENGTH,
    "output_len": _LENGTH,
    "cached": Bounds(0, 0.9999, "(a share)"),
    "ttft_ms": _MILLISECONDS,
    "tpot_ms": _MILLISECONDS,
    "acceptance_length": Bounds(1, _MOST_DRAFTS + 1, "tokens a pass"),
    "draft_tp": Bounds(1, 1024, "GPUs"),
    "max_model_len": _LENGTH,
    "max_num_seqs": Bounds(1, MOST_SEQUENCES, "requests on a replica"),
    "max_num_batched_tokens": Bounds(16, 1e6, "tokens"),
    "gpu_memory_utilization": Bounds(0.01, 1, "(a share)"),
    "price": USD_PER_GPU_HOUR,
    "utilization": Bounds(0.0001, 1, "(a share)"),
    "sell_input": _SELLING,
    "sell_output": _SELLING,
}
OPTIONS = {"cached": "--cached-prompt"}  # the others are called as their field is
_MOST_RANKS = 1024
_POOR_FIT = 0.10
_SHORTEST_LIMIT = 4096  # default of max_model_len: twice the load's mean lengths, but at least this


class NoDegreeError(ConfigurationError):
    """No --tp of those asked for is possible on this GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """As `paceline plan` takes them; None: not given."""

    model: str
    draft: str | None = None  # a model, or 'ngram'
    gpu: str = "h200"
    users: int | None = None
    requests_per_second: float | None = None
    input_len: int = 1024
    output_len: int = 256
    cached: float = 0.0
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    acceptance: float | None = None
    acceptance_length: float | None = None
    ks: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 7)
    tps: tuple[int, ...] = (1, 2, 4, 8)
    draft_tp: int = 1
    quantization: str | None = "fp8"
    draft_quantization: str | None = None  # as the target's
    quantize_lm_head: bool = False
    quantize_draft_lm_head: bool = True
    kv_cache_dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int = 2048
    gpu_memory_utilization: float = 0.9
    price: float | None = None
    prices_file: Path | None = None
    cloud: str | None = None
    hardware_file: Path | None = None
    utilization: float = 1.0
    sell_input: float = 0.0
    sell_output: float = 0.0
    calibration: Path | None = None
    is_greedy: bool = False


@dataclass(frozen=True, slots=True)
class Asked:
    question: Question
    calibration: Calibration | None
    gpus: Mapping[str, Gpu]
    prices: list[Price]
    notes: tuple[str, ...]


def read_request(request: Request) -> Asked:
    _check(request)
    gpus = load_gpus(request.hardware_file)
    prices = load_prices(request.prices_file, gpus)
    gpu = find_gpu(request.gpu, gpus)
    price = _price(request, prices, gpu)
    target, draft = read_pair(request, gpu)
    calibration = None
    if request.calibration is not None:
        calibration = calibrate(read_measurement(request.calibration, gpus, gpu))
    acceptance = _acceptance(request)
    has_load = request.users is not None or request.requests_per_second is not None
    question = Question(
        gpu=gpu,
        target=target,
        draft=draft,
        is_ngram=request.draft == "ngram",
        acceptance=acceptance,
        load=Load(
            workload=Workload(input_len=request.input_len, output_len=request.output_len, cached=request.cached),
            users=request.users if has_load else _DEFAULT_USERS,
            requests_per_second=request.requests_per_second,
        ),
        objective=Objective(ttft=_seconds(request.ttft_ms), tpot=_seconds(request.tpot_ms)),
        ks=tuple(sorted(set(request.ks) | {0})) if request.draft else (0,),
        tps=_degrees(request, target, draft, gpu),
        asked_tps=tuple(request.tps),
        draft_tp=request.draft_tp,
        limits=_limits(request, target),
        efficiency=calibration.efficiency if calibration else Efficiency(),
        price=price,
        utilization=request.utilization,
        selling=Selling(usd_per_million_input=request.sell_input, usd_per_million_output=request.sell_output),
        is_random=not request.is_greedy,
    )
    own_price = own_price_note(prices, gpu.key, price)
    notes = [*([own_price] if own_price else []), *_notes(request, gpu, acceptance, calibration)]
    return Asked(question, calibration, gpus, prices, tuple(notes))


def _notes(
    request: Request, gpu: Gpu, acceptance: SyntheticAcceptance, calibration: Calibration | None
) -> Iterator[str]:
    """What was assumed, and what of the request plays no part."""
    if calibration is not None and calibration.largest_error > _POOR_FIT:
        yield (
            f"The calibration leaves errors of up to {calibration.largest_error:.0%}: something in that run is not "
            "in the formulas (another load on the card, preemptions, eager steps). Take the plan with as much care."
        )
    if request.users is None and request.requests_per_second is None:
        yield f"No load was given: planned for {_DEFAULT_USERS} requests in flight (--users, --requests-per-second)."
    if request.draft and request.acceptance is None and request.acceptance_length is None:
        yield (
            "No acceptance was given: planned with 0.7, each draft if those before it were kept. Measure your own "
            "('paceline bench', the server's metrics) and give --acceptance or --acceptance-length."
        )
    if request.draft and (note := acceptance.note(max(request.ks))):
        yield note
    if request.draft and not max(request.ks):
        yield "-k 0: nothing is drafted, so --draft plays no part."
    if not gpu.has_fp8 and request.quantization == "fp8":
        yield f"{gpu.name} has no FP8 products: weights are held in bfloat16."


def read_pair(request: Request, gpu: Gpu) -> tuple[PlannedModel, PlannedModel | None]:
    longest = max(request.max_model_len or 0, request.input_len + request.output_len)
    target = read_model(
        request.model,
        gpu,
        quantization=request.quantization,
        quantize_lm_head=request.quantize_lm_head,
        kv_cache_dtype=request.kv_cache_dtype,
        max_model_len=longest,
        role="the model",
    )
    if request.draft in (None, "ngram"):
        return target, None
    assert request.draft is not None
    quantization = request.draft_quantization or request.quantization
    draft = read_model(
        request.draft,
        gpu,
        quantization=quantization,
        quantize_lm_head=request.quantize_draft_lm_head and quantization == "fp8",
        kv_cache_dtype=request.kv_cache_dtype,
        max_model_len=longest,
        role="the draft",
    )
    if draft.architecture.vocab_size != target.architecture.vocab_size:
        smaller, larger = sorted((draft.architecture.vocab_size, target.architecture.vocab_size))
        if larger - smaller > 1024:  # padding of a shared vocabulary is allowed (p39)
            raise ConfigurationError(
                f"--draft '{request.draft}' has {draft.architecture.vocab_size:,} tokens and the model "
                f"{target.architecture.vocab_size:,}: a draft must have the target's tokens."
            )
    return target, draft


def _check(request: Request) -> None:
    problems = []
    for field, bounds in BOUNDS.items():
        value = getattr(request, field)
        if value is not None and (problem := bounds.problem(OPTIONS.get(field, _option(field)), value)):
            problems.append(problem)
    if not request.ks or min(request.ks) < 0 or max(request.ks) > _MOST_DRAFTS:
        problems.append(f"-k {_joined(request.ks)}: give numbers of drafts from 0 to {_MOST_DRAFTS}.")
    if not request.tps or min(request.tps) < 1 or max(request.tps) > _MOST_RANKS:
        problems.append(f"--tp {_joined(request.tps)}: give numbers of GPUs that share a model, 1 to {_MOST_RANKS}.")
    for one, other in (
        ("acceptance", "acceptance_length"),
        ("users", "requests_per_second"),
        ("price", "cloud"),
        ("price", "prices_file"),
    ):
        if getattr(request, one) is not None and getattr(request, other) is not None:
            problems.append(f"Give either {_option(one)} or {_option(other.removesuffix('_file'))}, not both.")
    if problems:
        raise ConfigurationError(" ".join(problems))


def _option(field: str) -> str:
    return "--" + field.replace("_", "-")


def _joined(numbers: Iterable[int]) -> str:
    return ",".join(str(number) if abs(number) < 10**9 else "…" for number in numbers)


def _acceptance(request: Request) -> SyntheticAcceptance:
    if request.acceptance_length is not None:
        return SyntheticAcceptance(length=request.acceptance_length)
    rate = 0.7 if request.acceptance is None else request.acceptance
    if not 0 <= rate <= 1:
        raise ConfigurationError(
            f"--acceptance {rate} is no probability: P(a draft is kept | those before it were), from 0 to 1. For "
            "tokens a pass give --acceptance-length."
        )
    return SyntheticAcceptance(rate=rate)


def _seconds(milliseconds: float | None) -> float:
    return inf if milliseconds is None else milliseconds / 1e3


def _degrees(request: Request, target: PlannedModel, draft: PlannedModel | None, gpu: Gpu) -> tuple[int, ...]:
    """Those that cut the heads evenly and stay inside of a node."""
    arch = target.architecture
    found = [tp for tp in sorted(set(request.tps)) if tp <= gpu.gpus_per_node and _divides(tp, target)]
    if not found:
        raise NoDegreeError(
            f"--tp {_joined(request.tps)}: none of them divides {arch.num_heads} heads and {arch.num_kv_heads} "
            f"key-value heads within a node of {gpu.gpus_per_node} GPUs; {_and(possible_degrees(target, gpu))} do."
        )
    if draft is None:
        return tuple(found)
    shares = [tp for tp in found if tp % min(request.draft_tp, tp) == 0]
    if not shares or request.draft_tp > max(found) or not _divides(request.draft_tp, draft):
        raise NoDegreeError(
            f"--draft-tp {request.draft_tp} must divide the heads of the draft ({draft.architecture.num_heads}, and "
            f"{draft.architecture.num_kv_heads} key-value heads) and a degree of the target's (--tp {_joined(found)})."
        )
    return tuple(shares)


def possible_degrees(model: PlannedModel, gpu: Gpu) -> list[int]:
    """Of tensor parallelism, within a node."""
    return [tp for tp in range(1, gpu.gpus_per_node + 1) if _divides(tp, model)]


def _and(numbers: Sequence[int]) -> str:
    words = [str(number) for number in numbers]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _divides(tp: int, model: PlannedModel) -> bool:
    arch = model.architecture
    even = arch.num_heads % tp == 0 and arch.intermediate_size % tp == 0
    return even and (arch.num_kv_heads % tp == 0 or tp % arch.num_kv_heads == 0)


def _limits(request: Request, target: PlannedModel) -> Limits:
    longest = request.input_len + request.output_len
    default = min(max(_SHORTEST_LIMIT, 2 * longest), target.architecture.max_position_embeddings)
    if request.max_model_len is not None and request.max_model_len < longest:
        raise ConfigurationError(
            f"--max-model-len {request.max_model_len} is less than a request of --input-len {request.input_len} and "
            f"--output-len {request.output_len}."
        )
    return Limits(
        max_model_len=request.max_model_len or max(default, longest),
        max_num_seqs=request.max_num_seqs or MOST_SEQUENCES,
        max_num_batched_tokens=request.max_num_batched_tokens,
        gpu_memory_utilization=request.gpu_memory_utilization,
    )


def _price(request: Request, prices: list[Price], gpu: Gpu) -> Price | None:
    if request.price is None:
        return choose_price(prices, gpu.key, request.cloud)
    return Price(
        cloud="yours", gpu=gpu.key, usd_per_gpu_hour=request.price, source="as given with --price", checked="",
        is_own=True,
    )  # fmt: skip


def for_every_gpu(request: Request, gpus: Mapping[str, Gpu]) -> dict[str, tuple[PlannedModel, PlannedModel | None]]:
    """The pair as each GPU has it."""
    return {key: read_pair(replace(request, gpu=key), gpu) for key, gpu in gpus.items()}
