"""The same load on several kinds of GPU: the cheapest fleet of each, with and without speculation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rich.table import Table

from paceline.capacity.hardware import Gpu, find_gpu
from paceline.capacity.planner import Answer, Fleet, NothingFitsError, answer
from paceline.capacity.prices import NoPriceError, Price
from paceline.capacity.request import Asked, NoDegreeError, Request, read_request
from paceline.capacity.sentences import MONTH
from paceline.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Compared:
    gpu: str
    asked: Asked | None
    answer: Answer | None
    reason: str = ""  # why there is no answer


def gpu_names(words: str, gpus: Mapping[str, Gpu]) -> list[str]:
    """'all', or names separated by commas, in the order given. Raises ConfigurationError for an empty one, and for one
    GPU twice, by whatever names."""
    if words == "all":
        return list(gpus)
    parts = [word.strip() for word in words.split(",")]
    if "" in parts:
        raise ConfigurationError(f"--gpu '{words}': a name is empty; give names separated by single commas.")
    if "all" in parts:
        raise ConfigurationError(f"--gpu '{words}': 'all' stands alone, since it is every GPU that is known.")
    found: list[str] = []
    for word in parts:
        key = find_gpu(word, gpus).key
        if key in found:
            raise ConfigurationError(f"--gpu '{words}': {key} stands there twice.")
        found.append(key)
    return found


def compare(request: Request, names: Sequence[str]) -> list[Compared]:
    """Cheapest first, then those without a price, then those that cannot serve it. Raises ConfigurationError where none
    can."""
    if request.calibration is not None:
        raise ConfigurationError("--calibration is of one kind of GPU: give --gpu one name.")
    found = sorted((_one(replace(request, gpu=name)) for name in names), key=_order)
    if all(compared.asked is None for compared in found):
        reasons = ", ".join(f"{compared.gpu} {compared.reason}" for compared in found)
        raise ConfigurationError(f"None of the GPUs asked for can be planned with: {reasons}.")
    return found


def _one(request: Request) -> Compared:
    try:
        asked = read_request(request)
        return Compared(request.gpu, asked, answer(asked.question))
    except NothingFitsError:
        reason = "does not fit"
    except NoPriceError:
        reason = "no price"
    except NoDegreeError:
        reason = "no such TP"
    return Compared(request.gpu, None, None, reason)


def _order(compared: Compared) -> tuple[int, float]:
    best = compared.answer.best if compared.answer else None
    if best is None:
        return 2, 0.0
    return (1, float(best.num_gpus)) if best.money is None else (0, best.money.usd_per_month)


def comparison_table(found: Sequence[Compared], title: str) -> Table:
    table = Table(title=title)
    for heading in (
        "GPU", "$ an hour", "drafts", "TP", "K", "GPUs", "TTFT ms", "TPOT ms", "tok/s", "$ a month", "$/M output",
        "saved", "without: TP", "GPUs", "$ a month",
    ):  # fmt: skip
        table.add_column(heading, justify="left" if heading == "GPU" else "right", no_wrap=True)
    for compared in found:
        is_paper = compared.asked is not None and not compared.asked.question.gpu.runs_paceline
        table.add_row(f"{compared.gpu} *" if is_paper else compared.gpu, *_cells(compared))
    return table


def _cells(compared: Compared) -> list[str]:
    if compared.answer is None or compared.answer.best is None:
        return ["-", compared.reason or "misses the objective"]
    price = compared.answer.question.price
    best, plain = compared.answer.best, compared.answer.plain
    point, saved = best.point, None if plain is None else 1 - best.rented_gpus / plain.rented_gpus
    return [
        f"{price.usd_per_gpu_hour:.2f}" if price else "-", "with" if best.k else "without", str(best.tp), str(best.k),
        _gpus(best), f"{point.ttft * 1e3:,.0f}", f"{point.tpot * 1e3:.1f}", f"{best.tokens_per_second:,.0f}",
        _dollars(best), f"{best.money.usd_per_million_output_tokens:.2f}" if best.money else "no price",
        "-" if saved is None else f"{saved:.0%}",
        str(plain.tp) if plain else "misses it", _gpus(plain) if plain else "-", _dollars(plain) if plain else "-",
    ]  # fmt: skip


def comparison_words(found: Sequence[Compared]) -> Iterator[str]:
    """What the figures of the table rest on."""
    asked = [compared.asked.question for compared in found if compared.asked is not None]
    if not any(compared.answer is not None and compared.answer.best is not None for compared in found):
        yield "The objective cannot be met with any of them. Allow more (--tpot-ms, --ttft-ms), or more ranks (--tp)."
    if any(not question.gpu.runs_paceline for question in asked):
        yield "* Paceline's kernels were not written for it: what bytes and rates allow at the same efficiency"
    if any(compared.answer is not None and compared.answer.plain is not None for compared in found):
        yield "saved: of the cost of the cheapest fleet without speculation; both at the TP that suits them"
    if unpriced := [compared.gpu for compared in found if compared.reason == "no price"]:
        yield f"no price: none is known at that cloud for {', '.join(unpriced)}; --price or --prices FILE gives one"
    origins: dict[str, list[str]] = {}
    for question in asked:
        if question.price is not None:
            origins.setdefault(_origin(question.price), []).append(question.gpu.key)
    words = [origin if len(origins) == 1 else f"{origin} ({', '.join(keys)})" for origin, keys in origins.items()]
    yield (f"Prices a GPU and hour: {'; '.join(words)}. " if words else "No price is known. ") + MONTH


def _origin(price: Price) -> str:
    if price.is_own:
        return f"{price.cloud}, {price.source}"
    return "medians of list prices, GPU by GPU (--list)" if "list price" in price.cloud else f"list, {price.cloud}"


def _gpus(fleet: Fleet) -> str:
    rented = f" of {fleet.rented_gpus}" if fleet.rented_gpus != fleet.num_gpus else ""
    return f"{fleet.num_gpus}{rented}"


def _dollars(fleet: Fleet) -> str:
    return f"{fleet.money.usd_per_month:,.0f}" if fleet.money else "no price"
