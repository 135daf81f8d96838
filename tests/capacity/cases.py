"""A pair, a card and a measurement made by the model itself, for tests of everything built on them."""

from __future__ import annotations

from dataclasses import replace

from paceline.bench.acceptance import SyntheticAcceptance, expected_tokens
from paceline.capacity.calibration import predict
from paceline.capacity.efficiency import Efficiency
from paceline.capacity.hardware import Gpu, load_gpus
from paceline.capacity.measurement import MeasuredCase, Measurement
from paceline.capacity.memory import Limits
from paceline.capacity.pair import PlannedModel, read_model
from paceline.capacity.prices import choose_price, load_prices
from paceline.capacity.question import Load, Objective, Question
from paceline.capacity.roofline import Setup, step_seconds
from paceline.capacity.serving import Workload

GPUS = load_gpus()
H200 = GPUS["h200"]


def target(gpu: Gpu = H200) -> PlannedModel:
    return read_model("llama-3.1-70b", gpu, quantization="fp8")


def draft(gpu: Gpu = H200) -> PlannedModel:
    return read_model("llama-3.2-1b", gpu, quantization="fp8", quantize_lm_head=True)


def question(
    *,
    users: int | None = 64,
    requests_per_second: float | None = None,
    tpot: float = 0.020,
    ttft: float = 1.0,
    rate: float = 0.78,
    ks: tuple[int, ...] = (0, 1, 3, 5),
    input_len: int = 1024,
    output_len: int = 256,
) -> Question:
    return Question(
        gpu=H200,
        target=target(),
        draft=draft(),
        is_ngram=False,
        acceptance=SyntheticAcceptance(rate=rate),
        load=Load(
            workload=Workload(input_len=input_len, output_len=output_len),
            users=users,
            requests_per_second=requests_per_second,
        ),
        objective=Objective(tpot=tpot, ttft=ttft),
        ks=ks,
        tps=(1, 2, 4),
        draft_tp=1,
        limits=Limits(max_model_len=4096, max_num_seqs=1024),
        efficiency=Efficiency(),
        price=choose_price(load_prices(), "h200", None),
    )


def measurement(efficiency: Efficiency) -> Measurement:
    """What a card of this efficiency would have measured."""
    pair = target(), draft()
    empty = Measurement(
        source="made up",
        date="2026-11-30",
        command="",
        commit=None,
        gpu=H200,
        bandwidth=H200.bandwidth,
        target=pair[0],
        draft=pair[1],
        input_len=128,
        output_len=64,
        tp=1,
        draft_tp=1,
        is_random=False,
        cases=tuple(
            MeasuredCase(
                batch=batch,
                k=k,
                has_draft=True,
                tokens_per_second=1.0,
                tokens_per_pass=expected_tokens(0.78, k),
                step=1.0,
                draft=1.0,
                verify=1.0,
            )
            for batch in (1, 8, 64, 128)
            for k in (0, 3, 5)
        ),
        configurations=(),
    )
    setup = Setup(gpu=H200, efficiency=efficiency)
    cases = []
    for found in predict(empty, efficiency):
        parts = step_seconds(setup, *pair, rows=found.case.batch, k=found.case.k, positions=160)
        cases.append(
            replace(
                found.case,
                tokens_per_second=found.tokens_per_second,
                step=found.step,
                draft=parts.draft,
                verify=parts.verify,
            )
        )
    return replace(empty, cases=tuple(cases))
