"""What follows from a plan, in sentences: below the tables of a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.markup import escape

from paceline.bench.shapes import SHAPES
from paceline.capacity.calibration import Calibration
from paceline.capacity.economics import HOURS_PER_MONTH
from paceline.capacity.planner import LIMITS, Answer, Fleet, what_stops
from paceline.capacity.serve_command import serve_command

MONTH = f"A month is {HOURS_PER_MONTH:g} hours."
_WITHIN = {
    "memory": "the cache is short, and within its room",
    "ttft": "the first token comes later with drafts, and within --ttft-ms",
    "tpot": "a step with drafts takes longer, and within --tpot-ms",
}
_ALONE = {  # of one request on a replica
    "memory": "the cache has no room for a request with a draft beside the target",
    "ttft": "even alone a request misses --ttft-ms",
    "tpot": "even alone a request misses --tpot-ms",
}


def sentences(answer: Answer, calibration: Calibration | None) -> Iterator[str]:
    """Marked up for rich."""
    question = answer.question
    if max(question.ks):
        yield from saving_in_words(answer)
        yield break_even_in_words(answer)
    price = question.price
    yield (
        f"Price: {escape(price.in_words())}. {MONTH}"
        if price
        else "Price: none known for this GPU; give --price or --prices."
    )
    if question.utilization < 1:
        yield f"The load stands for {question.utilization * 100:.3g} % of the month; GPUs are paid for all of it."
    origin = f"calibrated with {calibration.source}" if calibration else "kernels measured one by one on an H200"
    yield f"Efficiency: {escape(origin)}. Times are means of the engine: no network, no server in front of it."
    if not question.gpu.runs_paceline:
        yield (
            f"[yellow]Note:[/] Paceline's kernels were not written for {escape(question.gpu.name)}: this is what its "
            "bytes and rates allow at the same efficiency."
        )
    for note in answer.notes:
        yield f"[yellow]Note:[/] {escape(note)}"


def command_in_words(answer: Answer) -> str:
    """What serves a replica, in one line to be copied; '' where nothing does. Not marked up."""
    if answer.best is None:
        return ""
    target = answer.question.target.name
    is_shape = " (its shape has no weights: give your model's directory there)" if target in SHAPES else ""
    return f"A replica of the cheapest{is_shape}: {serve_command(answer.question, answer.best)}"


def saving_in_words(answer: Answer) -> Iterator[str]:
    """Speculation alone first (the same degree of tensor parallelism), then each with the degree that suits it."""
    plain, drafted = answer.plain, answer.speculative
    if plain is None or drafted is None:
        if drafted is not None:
            yield f"Only speculation meets the objective: {gpus(drafted)} at TP={drafted.tp}, K={drafted.k}."
        elif plain is not None:
            why = _why_none(answer, answer.fitting)
            yield f"No K meets the objective{why}; without speculation {gpus(plain)} at TP={plain.tp} do."
        return
    alike = answer.speculative_at_plain_tp
    if alike is None:
        why = _why_none(answer, (plain.tp,))
        yield f"At TP={plain.tp}, the best without speculation, no K meets the objective{why}."
    else:
        yield f"Speculation alone, TP={plain.tp} with and without: {_against(alike, plain)}"
    if drafted.tp != plain.tp:
        only = answer.cheapest(tp=drafted.tp, drafts=False)
        at = f"without speculation TP={drafted.tp} " + (
            "misses the objective" if only is None else f"needs {gpus(only)}"
        )
        yield (f"Each at its best TP (TP={drafted.tp} with, TP={plain.tp} without; {at}): {_against(drafted, plain)}")


def _against(drafted: Fleet, plain: Fleet) -> str:
    """Of the same objective and load."""
    words = f"{gpus(drafted)} with K={drafted.k} instead of {plain.num_gpus}"
    saving = 1 - drafted.rented_gpus / plain.rented_gpus
    if saving > 0:
        return f"{words}, {saving:.0%} of the hosting cost saved."
    if saving < 0:
        return f"{words}, which costs {-saving:.0%} more: {_why_more(drafted, plain)}."
    if drafted.num_gpus != plain.num_gpus:
        return f"{words}, but machines are rented whole: no cost is saved."
    return (
        f"as many GPUs ({plain.num_gpus}), and with K={drafted.k} a token every {drafted.point.tpot * 1e3:.1f} ms "
        f"instead of {plain.point.tpot * 1e3:.1f}."
    )


def _why_more(drafted: Fleet, plain: Fleet) -> str:
    """The cause is what keeps a replica with drafts from as many requests as one without has."""
    if drafted.most_sequences < plain.most_sequences and drafted.limit in _WITHIN:
        return (
            f"{_WITHIN[drafted.limit]} a replica can have {drafted.most_sequences} requests in flight with drafts, and "
            f"{plain.most_sequences} without"
        )
    return "batching serves this load better"


def _why_none(answer: Answer, tps: Sequence[int]) -> str:
    """Why not even one request is served with drafts, in brackets: of every degree and K, each cause once."""
    causes = {what_stops(answer.question, tp, k, 1) for tp in tps for k in answer.question.ks if k}
    words = [_ALONE[name] for name in LIMITS if name in causes]
    return f" ({', '.join(words)})" if words else ""


def gpus(fleet: Fleet) -> str:
    return f"{fleet.num_gpus} GPU" + ("" if fleet.num_gpus == 1 else "s")


def break_even_in_words(answer: Answer) -> str:
    """Of the sweep: throughput of one replica, whatever the objective is. The gain need not fall with the number of
    requests: drafts from n-grams can gain at many and not at few, so that loads below the break-even are named too."""
    where = f"Throughput of one replica at TP={answer.swept_tp}, whatever the objective:"
    without = answer.without_gain_below_break_even
    places = _and([f"{concurrency:,}" for concurrency in without])
    if answer.break_even is None:
        if without:
            return f"{where} the best K gains at every number of requests shown but {places}, where no K gains 2 %."
        return f"{where} the best K gains at every number of requests shown."
    requests = "1 request" if answer.break_even == 1 else f"{answer.break_even} requests"
    below = f" No K gains 2 % at {places} in flight either." if without else ""
    if answer.is_for_want_of_room:
        return (
            f"{where} from {requests} in flight on, no K that gains can be had: the cache has no room for so many with "
            "a draft beside the target." + (below or " Up to there the best K gains.")
        )
    return (
        f"{where} from {requests} in flight on, batching has used up what speculation gains from, and no K gains 2 % "
        f"(a K without room in the cache counts as none).{below}"
    )


def _and(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
