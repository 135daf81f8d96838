"""What a GPU costs an hour: list prices of clouds with their source and date, or the user's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any

from paceline.capacity.hardware import check_kind, packaged_toml, read_toml
from paceline.errors import ConfigurationError, did_you_mean


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

    def __post_init__(self) -> None:
        if self.usd_per_gpu_hour <= 0 or self.gpus < 1:
            raise ConfigurationError(
                f"Price of {self.gpu} at {self.cloud}: usd_per_gpu_hour must be above 0 and gpus at least 1, not "
                f"{self.usd_per_gpu_hour} and {self.gpus}."
            )

    def in_words(self) -> str:
        origin = f"{self.cloud}, {self.what}" if self.what else self.cloud
        machine = f", machines of {self.gpus} GPUs" if self.gpus > 1 else ""
        return f"${self.usd_per_gpu_hour:,.2f} a GPU and hour ({origin}; {self.source}; {self.checked}{machine})"


def load_prices(user_file: Path | None = None) -> list[Price]:
    """The user's first: where both know a cloud and a GPU, the user's counts."""
    packaged = _parse(packaged_toml("prices.toml"), "prices.toml")
    own = _parse(read_toml(user_file), str(user_file)) if user_file is not None else []
    known = {(price.cloud, price.gpu) for price in own}
    return own + [price for price in packaged if (price.cloud, price.gpu) not in known]


def choose_price(prices: Sequence[Price], gpu: str, cloud: str | None) -> Price | None:
    """Of `cloud`; or the median of all that are known (the lower of two in the middle), which is no machine's price, so
    that GPUs count one by one; None where none is known."""
    found = sorted((price for price in prices if price.gpu == gpu), key=lambda price: price.usd_per_gpu_hour)
    if cloud is None:
        return _median(found) if found else None
    clouds = sorted({price.cloud for price in prices})
    if cloud not in clouds:
        raise ConfigurationError(f"--cloud '{cloud}' is not known.{did_you_mean(cloud, clouds)} Known: {clouds}.")
    of_cloud = [price for price in found if price.cloud == cloud]
    if not of_cloud:
        others = ", ".join(sorted({price.cloud for price in found})) or "no cloud"
        raise ConfigurationError(
            f"No price of {gpu} at '{cloud}' is known; of this GPU there is one at: {others}. Give --price USD (per "
            "GPU and hour), or --prices FILE."
        )
    return of_cloud[0]


def _median(ordered: Sequence[Price]) -> Price:
    middle = ordered[(len(ordered) - 1) // 2]
    if len(ordered) == 1:
        return replace(middle, gpus=1)
    return replace(
        middle,
        gpus=1,
        cloud=f"the median of {len(ordered)} list prices from ${ordered[0].usd_per_gpu_hour:,.2f} to "
        f"${ordered[-1].usd_per_gpu_hour:,.2f}: {middle.cloud}",
    )


def _parse(content: Mapping[str, Any], where: str) -> list[Price]:
    entries = content.get("prices")
    if not isinstance(entries, list) or not entries:
        raise ConfigurationError(f"'{where}' has no [[prices]] entries.")
    return [_price(number, entry, where) for number, entry in enumerate(entries, 1)]


def _price(number: int, entry: Any, where: str) -> Price:
    known = {field.name: field for field in fields(Price)}
    place = f"'{where}': entry {number} of prices"
    for name in entry:
        if name not in known:
            raise ConfigurationError(f"{place} has an unknown field '{name}'.{did_you_mean(name, known)}")
    for name, field in known.items():
        if name in entry:
            check_kind(entry[name], str(field.type), f"{place}, {name}")
        elif field.default is MISSING:
            raise ConfigurationError(f"{place} lacks '{name}'.")
    return Price(**entry)
