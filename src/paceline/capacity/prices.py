"""What a GPU costs an hour: list prices of clouds with their source and date, or the user's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from statistics import median
from typing import Any

from paceline.bench.bounds import Bounds
from paceline.capacity.hardware import Gpu, check_kind, checked_date, find_gpu, load_gpus, packaged_toml, read_toml
from paceline.errors import ConfigurationError, did_you_mean

USD_PER_GPU_HOUR = Bounds(1e-4, 1e6, "US dollars per GPU and hour")
_GPUS = Bounds(1, 1e6)


class NoPriceError(ConfigurationError):
    """The cloud asked for rents no such GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """US dollars per GPU and hour. `gpus`: the smallest machine that can be rented has so many."""

    cloud: str
    gpu: str
    usd_per_gpu_hour: float
    source: str
    checked: str  # date
    gpus: int = 1
    what: str = ""
    via: str = ""
    is_own: bool = field(default=False)  # the user's, not a list price; no field of a file

    def __post_init__(self) -> None:
        of = f"Price of {self.gpu} at {self.cloud}:"
        for name, bounds in (("usd_per_gpu_hour", USD_PER_GPU_HOUR), ("gpus", _GPUS)):
            if problem := bounds.problem(f"{of} {name}", getattr(self, name)):
                raise ConfigurationError(problem)

    def in_words(self) -> str:
        origin = f"{self.cloud}, {self.what}" if self.what else self.cloud
        machine = f", machines of {self.gpus} GPUs" if self.gpus > 1 else ""
        about = "; ".join(part for part in (origin, self.source, self.checked) if part)
        return f"${self.usd_per_gpu_hour:,.2f} a GPU and hour ({about}{machine})"


def load_prices(user_file: Path | None = None, gpus: Mapping[str, Gpu] | None = None) -> list[Price]:
    """The user's first: where both know a cloud and a GPU, the user's counts. `gpus`: those that prices may be of."""
    gpus = load_gpus() if gpus is None else gpus
    packaged = _parse(packaged_toml("prices.toml"), "prices.toml", gpus, is_own=False)
    own = []
    if user_file is not None:
        own = _parse(read_toml(user_file, "--prices"), f"--prices '{user_file}'", gpus, is_own=True)
    known = {(price.cloud, price.gpu) for price in own}
    return own + [price for price in packaged if (price.cloud, price.gpu) not in known]


def choose_price(prices: Sequence[Price], gpu: str, cloud: str | None) -> Price | None:
    """Of `cloud`; or the user's own; or the median of all list prices, which is no machine's price, so that GPUs count
    one by one; None where none is known. Raises ConfigurationError where the user's own are of several clouds."""
    found = sorted((price for price in prices if price.gpu == gpu), key=lambda price: price.usd_per_gpu_hour)
    if cloud is None:
        own = [price for price in found if price.is_own]
        return _own(own) if own else _median(found) if found else None
    clouds = sorted({price.cloud for price in prices})
    if cloud not in clouds:
        raise ConfigurationError(
            f"--cloud '{cloud}' is not known.{did_you_mean(cloud, clouds)} Known: {', '.join(clouds)}."
        )
    of_cloud = [price for price in found if price.cloud == cloud]
    if not of_cloud:
        others = ", ".join(sorted({price.cloud for price in found})) or "no cloud"
        raise NoPriceError(
            f"No price of {gpu} at '{cloud}' is known; of this GPU there is one at: {others}. Give --price USD (per "
            "GPU and hour) instead, or --prices FILE."
        )
    return of_cloud[0]


def own_price_note(prices: Sequence[Price], gpu: str, chosen: Price | None) -> str | None:
    """What a user who gave prices must know if none of them counts."""
    own = sorted({price.gpu for price in prices if price.is_own})
    if not own or (chosen is not None and chosen.is_own):
        return None
    if gpu in own:
        return "The price of --cloud counts, not the one in --prices."
    return f"--prices has no price of {gpu} (it has: {', '.join(own)}): a list price counts."


def _own(cheapest_first: Sequence[Price]) -> Price:
    clouds = list(dict.fromkeys(price.cloud for price in cheapest_first))
    if len(clouds) > 1:
        raise ConfigurationError(
            f"--prices has prices of {cheapest_first[0].gpu} at {', '.join(clouds)}: say which counts with --cloud."
        )
    return cheapest_first[0]


def _median(ordered: Sequence[Price]) -> Price:
    """Of an even number: the mean of the two in the middle."""
    if len(ordered) == 1:
        return replace(ordered[0], gpus=1, cloud=f"the one list price that is known: {ordered[0].cloud}")
    middle = list(dict.fromkeys((ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2])))
    edges = [f"${price.usd_per_gpu_hour:,.2f}" for price in (ordered[0], ordered[-1])]
    return Price(
        cloud=f"the median of {len(ordered)} list prices from {edges[0]} to {edges[1]}",
        gpu=ordered[0].gpu,
        usd_per_gpu_hour=median(price.usd_per_gpu_hour for price in ordered),
        source=("the mean of the two in the middle: " if len(middle) > 1 else "")
        + " and ".join(f"{price.cloud} ${price.usd_per_gpu_hour:,.2f} ({price.source})" for price in middle),
        checked=" and ".join(dict.fromkeys(price.checked for price in middle)),
    )


def _parse(content: Mapping[str, Any], where: str, gpus: Mapping[str, Gpu], *, is_own: bool) -> list[Price]:
    entries = content.get("prices")
    if not isinstance(entries, list) or not entries:
        raise ConfigurationError(f"{where} has no [[prices]] entries.")
    found: dict[tuple[str, str], Price] = {}
    for number, entry in enumerate(entries, 1):
        place = f"{where}: entry {number} of prices"
        price = _price(place, entry)
        price = replace(price, is_own=is_own, gpu=find_gpu(price.gpu, gpus, f"{place}: gpu").key)
        if (price.cloud, price.gpu) in found:
            raise ConfigurationError(f"{place}: there is already a price of {price.gpu} at '{price.cloud}': give one.")
        found[price.cloud, price.gpu] = price
    return list(found.values())


def _price(place: str, entry: Any) -> Price:
    known = {field.name: field for field in fields(Price) if field.name != "is_own"}
    if not isinstance(entry, dict):
        raise ConfigurationError(f"{place} must be a table.")
    for name in entry:
        if name not in known:
            raise ConfigurationError(f"{place} has an unknown field '{name}'.{did_you_mean(name, known)}")
    for name, field_ in known.items():
        if name in entry:
            if name == "checked":
                entry = entry | {name: checked_date(entry[name], f"{place}, {name}")}
            check_kind(entry[name], str(field_.type), f"{place}, {name}")
        elif field_.default is MISSING:
            raise ConfigurationError(f"{place} lacks '{name}'.")
    return Price(**entry)
