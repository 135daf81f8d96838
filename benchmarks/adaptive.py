"""K chosen by the controller against every fixed K, over batches and acceptance; and how it follows a change.

    python benchmarks/adaptive.py                                  one GPU: 70B shape, 1B draft, FP8; about 6 minutes
    python benchmarks/adaptive.py --device cpu                     the default pair; about 6 minutes on two quiet cores

Acceptance is synthetic: each draft is kept with the given probability if those before it were, so all sides have the
same drafts. In a mixed batch every other row's drafts are good and the rest are bad, each with its own probability.
What is compared is expected tokens (of the drafts that were really planned) over seconds that were really spent: with
the tokens that luck gave, batches of one would need minutes each.
On a CPU, which others may slow at any moment, all sides take turns in an order that turns on and round, each side with
short runs; each step counts with the undisturbed time of its kind over all rounds of its side (steps_by_kind.py), and
what is told is the median over rounds of the ratio within a round. A fixed K that is hopeless in the first two rounds
is left out of the others.
Every run covers the same positions. A side is timed from its second step of all rows on; the controller starts each
acceptance knowing nothing of it, and answers each batch `--repeats` times with new requests: a run on a GPU is over in
a second, and what is learnt of a single request in so few steps is mostly luck.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from adaptive_runs import MIXED, MOST, Rig, mixed_speed, repeated, run, settle, speed, without_steps
from common import record

from paceline.bench.acceptance import SyntheticAcceptance
from paceline.bench.sweep import Models, Sweep, plan_engines
from paceline.build import assemble_engine
from paceline.engine.engine import Engine

FIXED = (0, 1, 2, 3, 5, 7)
RATES = (0.78, 0.5, 0.2)
MIXED_BATCHES = {"cpu": (2, 4, 8, 16), "cuda": (32, 64, 128)}
FULL_ENOUGH = 0.98
SWING_STEPS = 60
HOPEFUL = 0.9  # of the best fixed K

Speed = Callable[[dict[str, Any], float], float]  # of a run at an acceptance


def take_turns(
    rig: Rig, batch: int, num_rounds: int, options: argparse.Namespace, controllers: dict[float, Any], speed_at: Speed
) -> list[list[dict[str, Any]]]:
    """By round: every fixed K, and for each acceptance (the keys of `controllers`) what its controller chooses."""
    sides: list[Any] = [*FIXED, *controllers]  # a K or a rate: int or float
    rounds: list[list[dict[str, Any]]] = []
    for number in range(num_rounds):
        # No side is twice beside itself, or always first: a machine may be slow for seconds on end.
        start = number * len(sides) // num_rounds
        order = [*sides[start:], *sides[:start]][:: 1 if number % 2 else -1]
        found = []
        for side in order:
            is_fixed = isinstance(side, int)
            if 0.0 not in controllers:  # 0.0 stands for a mixture, which is set already
                rig.set_acceptance(0.5 if is_fixed else side)
            if not is_fixed:
                rig.use(controllers[side])
            found.append(
                {"acceptance": None if is_fixed else side, **run(rig, batch, side if is_fixed else None, options)}
            )
        rounds.append(found)
        if number == 1:
            sides = [
                side for side in sides if not isinstance(side, int) or _is_hopeful(side, rounds, controllers, speed_at)
            ]
    settle(rounds)
    return rounds


def _is_hopeful(k: int, rounds: list[list[dict[str, Any]]], rates: Iterable[float], speed_at: Speed) -> bool:
    """Has it been within a tenth of the best fixed K at any of the acceptances? K = 0 always stays."""
    if k == 0:
        return True
    for rate in rates:
        for found in rounds:
            speeds = {one["k"]: speed_at(one, rate) for one in found if one["acceptance"] is None}
            if speeds[k] >= HOPEFUL * max(speeds.values()):
                return True
    return False


def compared(rounds: list[list[dict[str, Any]]], rate: float, speed_at: Speed) -> dict[str, Any]:
    """The controller at this acceptance against the fixed K that was best over all rounds, and against K = 0."""
    fixed = [{one["k"]: one for one in found if one["acceptance"] is None} for found in rounds]
    chosen = [next(one for one in found if one["acceptance"] == rate) for found in rounds]
    stayed = [k for k in fixed[0] if all(k in sides for sides in fixed)]
    speeds = {k: speed_at(repeated([sides[k] for sides in fixed]), rate) for k in stayed}
    best = max(speeds, key=lambda k: speeds[k])
    whole = repeated(chosen)

    def ratios(k: int) -> list[float]:
        return sorted(speed_at(one, rate) / speed_at(sides[k], rate) for one, sides in zip(chosen, fixed, strict=True))

    return {
        "acceptance": rate, "batch": whole["batch"], "best_k": best, "tokens_per_second": speed_at(whole, rate),
        "of_best": statistics.median(ratios(best)), "of_best_by_round": ratios(best),
        "of_plain": statistics.median(ratios(0)), "k_of_steps": whole["k_of_steps"],
        "seconds": [one["seconds"] for one in chosen],
        "rows_by_kind": whole["rows_by_kind"],
        "fixed_tokens_per_second": {str(k): value for k, value in speeds.items()},
    }  # fmt: skip


def mixed(rig: Rig, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Half of the rows draft well and half badly: the controller against every fixed K, in turn."""
    rig.mix_acceptance()

    def speed_at(result: dict[str, Any], rate: float) -> float:
        return mixed_speed(result)

    found = []
    for batch in (size for size in MIXED_BATCHES[options.device] if size <= max(options.batches)):
        if options.device == "cpu":
            runs = take_turns(rig, batch, options.rounds, options, {0.0: rig.start_controller()}, speed_at)
        else:  # its times hold: fixed sides once
            fixed = [{"acceptance": None, **without_steps(run(rig, batch, k, options))} for k in FIXED]
            rig.start_controller()
            chosen = [without_steps(run(rig, batch, None, options)) for _ in range(options.repeats)]
            runs = [[*fixed, {"acceptance": 0.0, **one}] for one in chosen]
        found.append({**compared(runs, 0.0, speed_at), "acceptance": MIXED})
        print(f"mixed {MIXED}, batch {batch}: {found[-1]['of_best']:.3f} of the best fixed K = {found[-1]['best_k']}")
    return found


def by_turns(rig: Rig, options: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[int, Any]]:
    """The table, and the raw rounds by batch."""
    controllers = {rate: rig.start_controller() for rate in options.rates}
    table, raw = [], {}
    for batch in options.batches:
        raw[batch] = take_turns(rig, batch, options.rounds, options, controllers, speed)
        table += [compared(raw[batch], rate, speed) for rate in options.rates]
        show(table[-len(options.rates) :])
    return table, raw


def follow(rig: Rig, most: int, options: argparse.Namespace) -> dict[str, Any]:
    """Load 1 -> most -> 1, and then an acceptance that collapses and comes back: K of every step."""
    rig.start_controller()
    trace: dict[str, list[int]] = {}
    length = 30 * SWING_STEPS

    def steps(name: str, count: int = SWING_STEPS) -> None:
        first = len(rig.drafts)
        for _ in range(count):
            rig.engine.step()
        trace[name] = [max(step, default=0) for step in rig.drafts[first:]]

    rig.set_acceptance(0.78)
    one = rig.add(1, options.input_len, length)
    steps("alone")
    others = rig.add(most - 1, options.input_len, length)
    steps(f"with {most - 1} others")
    for name in others:
        rig.engine.abort(name)
    steps("alone again")
    rig.set_acceptance(0.02)
    steps("acceptance 0.02")
    rig.drain(one)
    return trace


def settled_after(ks: list[int]) -> int:
    """Steps until the choice is within one of where it stays most of the second half."""
    home = Counter(ks[len(ks) // 2 :]).most_common(1)[0][0]
    return next((i for i in range(len(ks)) if all(abs(k - home) <= 1 for k in ks[i : i + 5])), len(ks))


def load(options: argparse.Namespace, folder: Path) -> Engine:
    gpu = options.device == "cuda"
    engine = {"device": options.device, "max_model_len": 2048, "max_num_seqs": max(options.batches)}
    speculative: dict[str, Any] = {"adaptive": True}
    if gpu and not options.model:
        engine |= {"quantization": "fp8"}
        speculative |= {"quantization": "fp8", "quantize_lm_head": True}
    models = Models(
        model=options.model or ("llama-3.1-70b" if gpu else "smollm2-135m-instruct"),
        draft=options.draft or ("llama-3.2-1b" if gpu else "smollm2-135m-instruct-draft"),
        engine=engine,
        speculative=speculative,
        acceptance=SyntheticAcceptance(RATES[0]),
    )
    sweep = Sweep(batches=tuple(options.batches), ks=(MOST,), input_len=options.input_len, output_len=1024)
    plans, notes = plan_engines(models, sweep, folder)
    for note in notes:
        print(note)
    return assemble_engine(plans[-1].config, None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--model")
    parser.add_argument("--draft")
    parser.add_argument("--batches", type=lambda text: [int(part) for part in text.split(",")])
    parser.add_argument("--rates", type=lambda text: [float(part) for part in text.split(",")], default=list(RATES))
    parser.add_argument("--input-len", type=int, default=32)
    parser.add_argument("--tokens", type=int, help="a row in each run; 128 on a GPU, 24 on a CPU")
    parser.add_argument("--repeats", type=int, default=3, help="on a GPU, runs of the controller")
    parser.add_argument("--rounds", type=int, default=5, help="on a CPU, in which every side runs once")
    parser.add_argument("--no-record", action="store_true", help="print only")
    options = parser.parse_args()
    gpu = options.device == "cuda"
    options.batches = options.batches or ([1, 2, 4, 8, 16, 32, 64, 128] if gpu else [1, 2, 4, 8, 16, 32])
    options.tokens = options.tokens or (128 if gpu else 24)
    started = time.perf_counter()
    with TemporaryDirectory() as folder:
        rig = Rig(load(options, Path(folder)))
    gc.collect()
    gc.freeze()  # as a server does
    loaded = time.perf_counter() - started
    print(f"loaded, costs measured: {loaded:.0f} s")
    raw: dict[str, Any]
    if gpu:
        rig.set_acceptance(0.5)
        fixed = [without_steps(run(rig, batch, k, options)) for batch in options.batches for k in FIXED]
        chosen = []
        for rate in options.rates:
            rig.set_acceptance(rate)
            rig.start_controller()
            for batch in options.batches:
                runs = [without_steps(run(rig, batch, None, options)) for _ in range(options.repeats)]
                chosen.append({"acceptance": rate, **repeated(runs)})
        table, raw = [row(result, fixed) for result in chosen], {"fixed": fixed, "adaptive": chosen}
        show(table)
    else:
        table, rounds = by_turns(rig, options)
        raw = {"rounds": rounds}
    trace = follow(rig, max(options.batches), options)
    mixtures = mixed(rig, options)
    settled = {name: settled_after(ks) for name, ks in trace.items()}
    print("steps until the choice has settled:", settled)
    worst = min(entry["of_best"] for entry in table)
    plainly = min(entry["of_plain"] for entry in table)
    print(f"worst against the best fixed K: {worst:.3f}; against K=0: {plainly:.3f} (wanted: {FULL_ENOUGH} of both)")
    if not options.no_record:
        document = {
            "hardware": rig.engine._executor.shapes().hardware, "seconds": time.perf_counter() - started,
            "options": {name: str(value) for name, value in vars(options).items()},
            "costs_at_start": rig.costs(), "table": table, **raw,
            "mixed": mixtures, "trace": trace, "settled_after": settled,
        }  # fmt: skip
        print(record(f"adaptive-{options.device}", document))
    rig.engine.shutdown()


def row(result: dict[str, Any], fixed: list[dict[str, Any]]) -> dict[str, Any]:
    rate = result["acceptance"]
    speeds = {other["k"]: speed(other, rate) for other in fixed if other["batch"] == result["batch"]}
    best = max(speeds, key=lambda k: speeds[k])
    found = speed(result, rate)
    return {
        "acceptance": rate, "batch": result["batch"], "best_k": best, "tokens_per_second": found,
        "of_best": found / speeds[best], "of_plain": found / speeds[0], "k_of_steps": result["k_of_steps"],
        "fixed_tokens_per_second": {str(k): value for k, value in speeds.items()},
    }  # fmt: skip


def show(table: list[dict[str, Any]]) -> None:
    print(f"{'accept.':>7} {'batch':>5} {'best K':>6} {'tok/s':>9} {'of best':>8} {'of K=0':>7}  K of the steps")
    for entry in table:
        print(
            f"{entry['acceptance']:7} {entry['batch']:5} {entry['best_k']:6} {entry['tokens_per_second']:9.1f} "
            f"{entry['of_best']:8.3f} {entry['of_plain']:7.3f}  {entry['k_of_steps']}"
        )


if __name__ == "__main__":
    main()
