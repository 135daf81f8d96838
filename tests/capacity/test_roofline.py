"""The model of a step against kernels measured one by one, and against what must hold on any card."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from capacity.cases import GPUS, H200, draft, target
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.capacity.efficiency import CONSTANTS, ORIGINS, Efficiency
from paceline.capacity.pair import PlannedModel
from paceline.capacity.roofline import (
    _LAUNCHES_A_LAYER,
    _STEP_KERNELS,
    Pass,
    Setup,
    history_seconds,
    pass_seconds,
    prefill_seconds,
    step_seconds,
)
from paceline.models.architecture import read_architecture
from paceline.runner.kv_pool import bytes_per_block

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
SETUP = Setup(gpu=H200)
TARGET, DRAFT = target(), draft()
PAIRS = {True: (TARGET, DRAFT), False: (target(GPUS["a100-80"]), draft(GPUS["a100-80"]))}


def test_products_are_within_15_percent_of_the_kernels_measured_one_by_one() -> None:
    """Of the 70B at every number of rows; of the 1B up to 64, where they are Paceline's own and count most."""
    recorded = json.loads((RESULTS / "kernels-products.json").read_text())["layers"]
    models = {"llama-3.1-70b": (TARGET, 1 << 20), "llama-3.2-1b": (DRAFT, 64)}
    compared = 0
    for row in recorded:
        model, most_rows = models[row["shape"]]
        if row["rows"] <= most_rows:
            found = pass_seconds(SETUP, model, Pass(rows=row["rows"], positions=1, scored=1), 1)
            assert (found.products + found.small_kernels) * 1e3 == pytest.approx(row["paceline_ms"], rel=0.15)
            compared += 1
    assert compared >= 14


def test_a_step_is_never_faster_than_the_ceiling_of_bytes() -> None:
    """The same bytes that bench/ceiling.py counts, at the card's peak."""
    for rows in (1, 32):
        for k in (0, 5):
            found = step_seconds(SETUP, TARGET, DRAFT, rows=rows, k=k, positions=512).total
            cache = rows * 512 * (TARGET.kv_bytes_per_position + k * DRAFT.kv_bytes_per_position)
            assert found > (TARGET.read_bytes + k * DRAFT.read_bytes + cache) / H200.bandwidth


@given(st.sampled_from(sorted(GPUS)), st.integers(1, 300), st.integers(0, 8), st.integers(1, 20000))
def test_more_of_anything_takes_longer(gpu: str, rows: int, k: int, positions: int) -> None:
    setup, pair = Setup(gpu=GPUS[gpu]), PAIRS[GPUS[gpu].has_fp8]

    def seconds(rows: int, k: int, positions: int) -> float:
        return step_seconds(setup, *pair, rows=rows, k=k, positions=positions).total

    here = seconds(rows, k, positions)
    assert here <= seconds(rows * 2, k, positions)
    assert here < seconds(rows, k + 1, positions)
    assert here < seconds(rows, k, positions + 100)


def test_a_step_is_linear_in_the_positions_its_rows_see() -> None:
    """page.py and offline_run.py rely on it."""
    at = [step_seconds(SETUP, TARGET, DRAFT, rows=24, k=3, positions=p).total for p in (0, 1000, 3000)]
    assert at[2] - at[1] == pytest.approx(2 * (at[1] - at[0]), rel=1e-9)


def test_ranks_share_the_work_and_pay_for_the_sums() -> None:
    alone = pass_seconds(SETUP, TARGET, Pass(rows=8, positions=512, scored=8), 1)
    shared = pass_seconds(SETUP, TARGET, Pass(rows=8, positions=512, scored=8), 4)
    assert alone.exchange == 0
    assert alone.products / 4 < shared.products < alone.products / 3
    assert 0 < shared.exchange < alone.products


def test_k_0_costs_nothing_more_than_no_draft() -> None:
    """p34, on paper."""
    with_draft = step_seconds(SETUP, TARGET, DRAFT, rows=16, k=0, positions=512)
    assert with_draft == step_seconds(SETUP, TARGET, None, rows=16, k=0, positions=512)


def test_a_prompt_in_chunks_is_read_in_about_the_time_of_the_same_chunks() -> None:
    whole = prefill_seconds(SETUP, TARGET, None, tokens=4096, most_tokens=2048)
    half = prefill_seconds(SETUP, TARGET, None, tokens=2048, most_tokens=2048)
    assert 2 * half < whole < 2.3 * half
    assert prefill_seconds(SETUP, TARGET, None, tokens=1, most_tokens=2048) > 0


@pytest.mark.parametrize("draft", [None, DRAFT])
def test_what_the_prefix_cache_has_is_looked_at_though_not_computed(draft: PlannedModel | None) -> None:
    """The last 2,048 of 16,384 tokens take as long as that chunk of the whole prompt."""

    def prefill(tokens: int) -> float:
        return prefill_seconds(SETUP, TARGET, draft, tokens=tokens, most_tokens=2048)

    after = 2048 * (16_384 - 2048) * history_seconds(SETUP, TARGET, draft)
    assert prefill(2048) + after == pytest.approx(prefill(16_384) - prefill(16_384 - 2048), rel=1e-9)
    assert after > 0.1 * prefill(2048)


def test_every_coefficient_has_an_origin() -> None:
    assert ORIGINS.keys() == Efficiency().as_dict().keys()


def test_cache_bytes_are_the_pool_s_own(tmp_path: Path) -> None:
    import torch

    from paceline.bench.shapes import locate_model

    arch = read_architecture(Path(locate_model("llama-3.1-70b", tmp_path).model))
    assert TARGET.kv_bytes_per_position * 16 == bytes_per_block(arch, torch.bfloat16, 16)


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 20_000), st.sampled_from([16, 64, 100, 512, 2048]))
def test_a_prompt_in_chunks_is_the_sum_of_its_chunks(tokens: int, most: int) -> None:
    """In closed form, so that a plan with small chunks takes no longer than another."""
    floors = [(m.architecture.num_layers * _LAUNCHES_A_LAYER + _STEP_KERNELS) * CONSTANTS["launch"] for m in
              (TARGET, DRAFT)]  # fmt: skip
    expected, done = 0.0, 0
    while done < tokens:
        chunk = min(most, tokens - done)
        done += chunk
        work = Pass(rows=1, queries=chunk, positions=done, scored=1, is_prefill=True)
        for model, floor in zip((TARGET, DRAFT), floors, strict=True):
            expected += max(pass_seconds(SETUP, model, work, 1).total, floor)
    assert prefill_seconds(SETUP, TARGET, DRAFT, tokens=tokens, most_tokens=most) == pytest.approx(expected, rel=1e-9)
