"""From a load to a fleet: what must hold of any answer, and the page's script against the same formulas."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest
from capacity.cases import GPUS, H200, draft, question, target

from paceline.capacity import memory
from paceline.capacity.economics import Selling, money
from paceline.capacity.memory import Limits, plan_pair, room_for_positions
from paceline.capacity.page import page_data, render_page
from paceline.capacity.planner import answer, what_stops
from paceline.capacity.prices import load_prices
from paceline.capacity.question import Load, Objective
from paceline.capacity.sentences import break_even_in_words, saving_in_words
from paceline.capacity.serving import Workload, operate, steady_state
from paceline.errors import ConfigurationError


def test_the_cheapest_fleet_meets_the_objective_and_its_memory() -> None:
    asked = question()
    found = answer(asked)
    assert found.best is not None
    for fleet in found.fleets:
        assert fleet.point.tpot <= asked.objective.tpot
        assert fleet.point.ttft <= asked.objective.ttft
        assert fleet.replicas * fleet.point.concurrency >= 64
        assert fleet.point.concurrency <= fleet.most_sequences
        assert fleet.rented_gpus >= found.best.rented_gpus
        assert room_for_positions(fleet.memory, asked.limits) >= fleet.most_sequences * (1280 + fleet.k)


def test_most_sequences_is_the_most() -> None:
    """One more would miss the objective or the cache."""
    asked = question(users=4096)
    for fleet in answer(asked).fleets:
        more = operate(asked.replica(fleet.tp), asked.load.workload, fleet.most_sequences + 1, fleet.k)
        memory = asked.memory(fleet.tp, fleet.k, fleet.most_sequences + 1)
        room = room_for_positions(memory, asked.limits)
        assert not asked.objective.holds(more) or room < (fleet.most_sequences + 1) * (1280 + fleet.k)


def test_the_answer_changes_with_the_load() -> None:
    """Speculation gains most alone, and batching takes its place: p33 on paper."""
    found = answer(question(ks=(0, 1, 2, 3, 5, 7), input_len=64, output_len=64))
    gains = [swept.gain for swept in found.sweep]
    assert gains[0] > 2.5
    assert gains == sorted(gains, reverse=True)
    assert found.sweep[0].best.k > found.sweep[5].best.k
    assert found.break_even is not None
    assert 64 <= found.break_even <= 512


def test_a_tight_objective_is_where_speculation_saves() -> None:
    tight, loose = answer(question(tpot=0.018)), answer(question(tpot=0.5, ttft=60.0, users=2048))
    assert tight.gpu_saving is not None
    assert loose.gpu_saving is not None
    assert tight.gpu_saving >= 0.3
    assert loose.gpu_saving < 0.2


def test_what_speculation_saves_is_told_apart_from_what_another_degree_does() -> None:
    """The same TP first; then each at its best, where that is another one."""
    found = answer(question())
    assert found.plain is not None
    assert found.speculative is not None
    alike = found.speculative_at_plain_tp
    assert alike is not None
    assert alike.tp == found.plain.tp != found.speculative.tp
    assert found.saving_at_plain_tp == 1 - alike.rented_gpus / found.plain.rented_gpus
    assert found.saving is not None
    assert found.saving > found.saving_at_plain_tp
    first, second = saving_in_words(found)
    assert first.startswith(f"Speculation alone, TP={alike.tp} with and without: {alike.num_gpus} GPUs with K=")
    assert f"TP={found.speculative.tp} with, TP={alike.tp} without" in second
    assert f"{found.saving:.0%} of the hosting cost saved" in second
    assert f"{found.saving:.0%}" not in first
    only_one = answer(replace(question(), tps=(2,)))
    assert len(list(saving_in_words(only_one))) == 1


def test_sentences_without_a_fleet_on_one_side() -> None:
    both = answer(question())
    (words,) = saving_in_words(replace(both, fleets=tuple(fleet for fleet in both.fleets if fleet.k)))
    assert words.startswith("Only speculation meets the objective: ")
    (words,) = saving_in_words(replace(both, fleets=tuple(fleet for fleet in both.fleets if not fleet.k)))
    assert words.startswith("No K meets the objective; without speculation ")


@pytest.mark.parametrize(
    ("gains", "said"),
    [
        ((1.5, 1.2, 1.1), "the best K gains at every number of requests shown."),
        ((1.0, 1.01, 1.1), "the best K gains at every number of requests shown but 1 and 2, where no K gains 2 %."),
        ((1.3, 1.2, 1.0), "from 4 requests in flight on, batching has used up what speculation gains from"),
        ((1.0, 1.2, 1.0), "(a K without room in the cache counts as none). No K gains 2 % at 1 in flight either."),
    ],
)
def test_the_break_even_is_told_of_every_number_of_requests(gains: tuple[float, ...], said: str) -> None:
    """The sentence beside a table whose gain rises and falls: n-grams, cheap drafts that are seldom kept."""
    found = answer(question())
    sweep = []
    for swept, gain in zip(found.sweep, gains, strict=False):
        plain = swept.points[0]
        best = replace(plain, k=1, tokens_per_second=plain.tokens_per_second * gain)
        sweep.append(replace(swept, points=(plain, best), best=best, gain_with_room=gain))
    words = break_even_in_words(replace(found, sweep=tuple(sweep)))
    assert said in words
    assert ("either" in words) == ("either" in said)


def test_each_cause_by_which_a_replica_is_full() -> None:
    asked = question()
    assert what_stops(asked, 4, 3, 1) == ""
    assert what_stops(asked, 1, 3, 1024) == "memory"
    assert what_stops(question(ttft=1e-4), 4, 3, 1) == "ttft"
    assert what_stops(question(tpot=1e-4), 4, 3, 1) == "tpot"
    for fleet in answer(question(users=4096)).fleets:
        assert fleet.limit == what_stops(question(users=4096), fleet.tp, fleet.k, fleet.most_sequences + 1) != ""


@pytest.mark.parametrize(
    ("limit", "cause"),
    [
        ("memory", "the cache is short, and within its room"),
        ("ttft", "within --ttft-ms a replica can have 8 requests in flight with drafts, and 16 without"),
        ("tpot", "within --tpot-ms a replica can have 8"),
        ("", "batching serves this load better"),
    ],
)
def test_why_drafts_cost_more_is_named(limit: str, cause: str) -> None:
    found = answer(question())
    assert found.plain is not None
    plain = replace(found.plain, most_sequences=16)
    dear = replace(plain, k=3, most_sequences=8, limit=limit, rented_gpus=2 * plain.rented_gpus)
    (words,) = saving_in_words(replace(found, fleets=(plain, dear)))
    assert "which costs 100% more: " in words
    assert cause in words
    assert limit == "" or "batching" not in words
    alike = replace(dear, most_sequences=16)  # as many in flight: no bound is what makes it dearer
    (words,) = saving_in_words(replace(found, fleets=(plain, alike)))
    assert "batching serves this load better" in words


@pytest.mark.parametrize(("objective", "cause"), [("ttft", "misses --ttft-ms"), ("tpot", "misses --tpot-ms")])
def test_why_no_k_meets_the_objective_is_named(objective: str, cause: str) -> None:
    """Drafts that are never kept, and an objective that a request alone just meets without them."""
    free = question(users=1, rate=0.0, tpot=10.0, ttft=10.0, ks=(0, 5))
    alone = operate(free.replica(4), free.load.workload, 1, 0)
    bound = getattr(alone, objective) * 1.001
    asked = question(users=1, rate=0.0, ks=(0, 5), **({"ttft": 10.0, "tpot": 10.0} | {objective: bound}))
    (words,) = saving_in_words(answer(asked))
    assert words.startswith(f"No K meets the objective (even alone a request {cause})")


def test_a_useless_draft_costs_more() -> None:
    found = answer(question(rate=0.0, tpot=0.025))
    assert found.best is not None
    assert found.best.k == 0
    assert all(swept.best.k == 0 for swept in found.sweep)


def test_arrivals_and_requests_in_flight_agree() -> None:
    """Little's law: what a fleet for N in flight serves a second needs about the same fleet."""
    by_users = answer(question(users=64, ks=(0, 3))).fleets[0]
    rate = by_users.replicas * by_users.point.requests_per_second
    asked = question(users=None, requests_per_second=rate, ks=(0, 3))
    by_rate = answer(asked).fleets[0]
    assert by_rate.num_gpus == by_users.num_gpus
    assert by_rate.point.concurrency == pytest.approx(by_users.point.concurrency, abs=1)


def test_steady_state_by_hand() -> None:
    """2 requests, 11 tokens each, steps of 10 ms, 2 tokens a pass, prompts of 50 ms."""
    point = steady_state(Workload(input_len=100, output_len=11), 2, 3, 0.010, 2.0, 0.050)
    assert point.tpot == pytest.approx((10 * 0.005 + 0.050) / 10)
    load = 0.050 / (0.100 + 0.050)
    assert point.ttft == pytest.approx(0.005 + 0.050 + load * 0.050 / (2 * (1 - load)))
    assert point.requests_per_second == pytest.approx(2 / (point.ttft + 0.100))
    assert point.tokens_per_second == pytest.approx(11 * point.requests_per_second)


def test_money_by_hand() -> None:
    found = money(
        num_gpus=8, usd_per_gpu_hour=2.0, requests_per_second=10.0, input_len=1000, output_len=100, utilization=0.5,
        selling=Selling(usd_per_million_input=0.5, usd_per_million_output=2.0),
    )  # fmt: skip
    assert found.usd_per_month == 8 * 2 * 730
    assert found.output_tokens_per_month == pytest.approx(10 * 0.5 * 730 * 3600 * 100)
    assert found.usd_per_million_output_tokens == pytest.approx(11680 / 1314)
    assert found.revenue_per_month == pytest.approx(13140 * 0.5 + 1314 * 2.0)
    assert found.gross_margin == pytest.approx(1 - 11680 / (6570 + 2628))


def test_an_objective_that_nothing_meets_says_how_near_it_comes() -> None:
    found = answer(question(tpot=0.0005))
    assert found.fleets == ()
    assert "a token every" in found.notes[-1]
    assert found.sweep


def test_a_model_that_fits_nowhere_is_refused() -> None:
    asked = replace(question(), gpu=GPUS["l4"], tps=(1, 2))
    with pytest.raises(ConfigurationError, match=r"Nothing fits.*TP=1.*do not fit.*TP=2"):
        answer(asked)


def test_a_load_and_an_objective_are_checked() -> None:
    with pytest.raises(ConfigurationError, match="either --users or"):
        Load(workload=Workload(input_len=1, output_len=1))
    with pytest.raises(ConfigurationError, match="--requests-per-second must be above 0"):
        Load(workload=Workload(input_len=1, output_len=1), requests_per_second=0.0)
    with pytest.raises(ConfigurationError, match="--tpot-ms"):
        Objective(tpot=0.0)


def test_both_models_and_both_pools_are_in_the_plan() -> None:
    """p35, on paper."""
    limits = Limits(max_model_len=4096, max_num_seqs=32)
    plain = plan_pair(H200, target(), draft(), 0, limits)
    drafted = plan_pair(H200, target(), draft(), 5, limits)
    assert plain.draft_weight_bytes == plain.draft_bytes_per_block == 0
    assert drafted.draft_weight_bytes > 1.2e9
    assert drafted.draft_bytes_per_block * 10 == drafted.target_bytes_per_block
    assert drafted.planned_bytes <= drafted.limit_bytes


def test_what_the_engine_counts_is_counted_alike() -> None:
    from paceline.speculative import captured
    from paceline.worker import profile, worker

    assert memory._GRAPH_BYTES == captured._BYTES_OF_A_GRAPH
    assert memory._POOL_MARGIN == captured._POOL_MARGIN
    assert memory._MARGIN == profile._MARGIN
    assert memory._DRAFT_COUNTS == worker._DRAFT_COUNTS


# -- the page ------------------------------------------------------------------------------------------------------


def _data() -> object:
    asked = question(ks=(0, 1, 3, 5))
    return page_data(answer(asked), {"h200": (target(), draft())}, GPUS, load_prices())


def test_the_page_is_self_contained() -> None:
    page = render_page(_data())
    assert "/*DATA*/" not in page
    assert "/*SCRIPT*/" not in page
    for outside in ('src="', "url(", "fetch(", "import ", "<link"):
        assert outside not in page
    assert "2026" in page


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no Chromium to open the page in")
def test_the_page_opens_in_a_browser(tmp_path: Path) -> None:
    (tmp_path / "plan.html").write_text(render_page(_data()))
    run = subprocess.run(
        [
            "chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", "--dump-dom",
            (tmp_path / "plan.html").as_uri(),
        ],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert "Speculation alone, TP=2 with and without" in run.stdout
    assert "Each at its best TP (TP=1 with, TP=2 without" in run.stdout
    assert "A month is 730 hours" in run.stdout
    assert run.stdout.count("<polyline") == 4
    assert "NVIDIA H200" in run.stdout


@pytest.mark.skipif(shutil.which("node") is None, reason="no node to run the page's script")
@pytest.mark.parametrize(
    ("users", "rate", "input_len", "cached"),
    [(64, 0.78, 1024, 0.0), (300, 0.6, 700, 0.0), (7, 0.9, 3000, 0.0), (64, 0.78, 8000, 0.744)],
)
def test_the_page_s_script_gives_the_planner_s_answer(
    tmp_path: Path, users: int, rate: float, input_len: int, cached: float
) -> None:
    asked = question(users=users, rate=rate, input_len=input_len, tpot=0.03)
    load = replace(asked.load, workload=replace(asked.load.workload, cached=cached))
    asked = replace(asked, load=load)
    expected = answer(asked)
    script = Path(str(resources.files("paceline.capacity").joinpath("data", "page.js")))
    (tmp_path / "data.json").write_text(json.dumps(_data()))
    (tmp_path / "input.json").write_text(
        json.dumps({"users": users, "acceptance": rate, "inputLen": input_len, "cached": cached})
    )
    run = subprocess.run(
        [
            "node", "-e",
            f"const page = require({json.dumps(str(script))}); const fs = require('fs');"
            "const data = JSON.parse(fs.readFileSync('data.json')), given = JSON.parse(fs.readFileSync('input.json'));"
            "const input = {...page.initial(data), ...given, tpot: 0.03, ttft: 1.0};"
            "console.log(JSON.stringify(page.answer(data, input)));",
        ],
        cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    found = json.loads(run.stdout)
    for name in ("plain", "speculative"):
        fleet = getattr(expected, name)
        assert (found[name]["gpus"], found[name]["tp"]) == (fleet.num_gpus, fleet.tp)
        assert found[name]["point"]["tpot"] == pytest.approx(fleet.point.tpot, rel=0.02)
        assert found[name]["tokens"] == pytest.approx(fleet.tokens_per_second, rel=0.02)
        assert found[name]["cost"] == pytest.approx(fleet.money.usd_per_month, rel=1e-6)
    gains = [swept["gain"] for swept in found["sweep"]]
    assert gains == pytest.approx([swept.gain for swept in expected.sweep], rel=0.02)


@pytest.mark.skipif(shutil.which("node") is None, reason="no node to run the page's script")
def test_the_page_opens_with_the_plan_s_own_figures(tmp_path: Path) -> None:
    """To the last digit, K included; a slider moved by the least leads to the grid."""
    asked = question(ks=(0, 1, 2, 3, 4, 5, 7), users=77, input_len=777)
    expected = answer(asked)
    data = page_data(expected, {"h200": (target(), draft())}, GPUS, load_prices())
    script = Path(str(resources.files("paceline.capacity").joinpath("data", "page.js")))
    (tmp_path / "data.json").write_text(json.dumps(data))
    run = subprocess.run(
        [
            "node", "-e",
            f"const page = require({json.dumps(str(script))}); const fs = require('fs');"
            "const data = JSON.parse(fs.readFileSync('data.json')), input = page.initial(data);"
            "const moved = {...input, users: input.users + 1};"
            "console.log(JSON.stringify([page.shown(data, input), page.shown(data, moved)]));",
        ],
        cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    opened, moved = json.loads(run.stdout)
    assert (opened["isPlan"], moved["isPlan"]) == (True, False)
    for name, fleet in (("plain", expected.plain), ("speculative", expected.speculative),
                        ("alike", expected.speculative_at_plain_tp)):  # fmt: skip
        assert fleet is not None
        found = opened["found"][name]
        assert (found["tp"], found["k"], found["gpus"], found["rented"], found["nodes"], found["most"]) == (
            fleet.tp, fleet.k, fleet.num_gpus, fleet.rented_gpus, fleet.nodes, fleet.most_sequences
        )  # fmt: skip
        assert (found["tokens"], found["point"]["tpot"]) == (fleet.tokens_per_second, fleet.point.tpot)
        assert found["cost"] == fleet.money.usd_per_month
    assert [swept["gain"] for swept in opened["found"]["sweep"]] == [swept.gain for swept in expected.sweep]
    assert [swept["best"]["k"] for swept in opened["found"]["sweep"]] == [swept.best.k for swept in expected.sweep]
    assert moved["found"]["speculative"].keys() == opened["found"]["speculative"].keys()
