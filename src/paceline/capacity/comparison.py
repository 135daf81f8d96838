"""The same load on several kinds of GPU: the cheapest fleet of each, with and without speculation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rich.table import Table

from paceline.capacity.hardware import Gpu, find_gpu
from paceline.capacity.planner import Answer, Fleet, answer
from paceline.capacity.request import Asked, Request, read_request
from paceline.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Compared:
    gpu: str
    asked: Asked | None
    answer: Answer | None
    reason: str = ""  # why there is no answer


def gpu_names(words: str, gpus: Mapping[str, Gpu]) -> list[str]:
    """'all', or names separated by commas; each once, in the order given."""
    if words == "all":
        return list(gpus)
    return list(dict.fromkeys(find_gpu(word.strip(), gpus).key for word in words.split(",")))


def compare(request: Request, names: Sequence[str]) -> list[Compared]:
    """Cheapest first, then those without a price, then those on which nothing fits."""
    if request.calibration is not None:
        raise ConfigurationError("--calibration is of one kind of GPU: give --gpu one name.")
    return sorted((_one(replace(request, gpu=name)) for name in names), key=_order)


def _one(request: Request) -> Compared:
    try:
        asked = read_request(request)
        return Compared(request.gpu, asked, answer(asked.question))
    except ConfigurationError as error:
        if not str(error).startswith("Nothing fits."):
            raise
        return Compared(request.gpu, None, None, "does not fit")


def _order(compared: Compared) -> tuple[int, float]:
    best = compared.answer.best if compared.answer else None
    if best is None:
        return 2, 0.0
    return (1, float(best.num_gpus)) if best.money is None else (0, best.money.usd_per_month)


def comparison_table(found: Sequence[Compared], title: str) -> Table:
    table = Table(title=title)
    for heading in (
        "GPU", "drafts", "TP", "K", "GPUs", "TTFT ms", "TPOT ms", "tok/s", "$ a month", "$/M output", "saved",
        "without: GPUs", "$ a month",
    ):  # fmt: skip
        table.add_column(heading, justify="left" if heading == "GPU" else "right", no_wrap=True)
    for compared in found:
        is_paper = compared.asked is not None and not compared.asked.question.gpu.runs_paceline
        table.add_row(f"{compared.gpu} *" if is_paper else compared.gpu, *_cells(compared))
    return table


def _cells(compared: Compared) -> list[str]:
    if compared.answer is None or compared.answer.best is None:
        return [compared.reason or "misses the objective"]
    best, plain = compared.answer.best, compared.answer.plain
    point, saved = best.point, None if plain is None else 1 - best.rented_gpus / plain.rented_gpus
    return [
        "with" if best.k else "without", str(best.tp), str(best.k), _gpus(best), f"{point.ttft * 1e3:,.0f}",
        f"{point.tpot * 1e3:.1f}", f"{best.tokens_per_second:,.0f}", _dollars(best),
        f"{best.money.usd_per_million_output_tokens:.2f}" if best.money else "no price",
        "-" if saved is None else f"{saved:.0%}",
        _gpus(plain) if plain else "misses it", _dollars(plain) if plain else "-",
    ]  # fmt: skip


def _gpus(fleet: Fleet) -> str:
    rented = f" of {fleet.rented_gpus}" if fleet.rented_gpus != fleet.num_gpus else ""
    return f"{fleet.num_gpus}{rented}"


def _dollars(fleet: Fleet) -> str:
    return f"{fleet.money.usd_per_month:,.0f}" if fleet.money else "no price"
