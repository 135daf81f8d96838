"""Money: what a fleet costs, what a token costs, what is left of a selling price."""

from __future__ import annotations

from dataclasses import dataclass

HOURS_PER_MONTH = 730.0
_SECONDS_PER_MONTH = HOURS_PER_MONTH * 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Selling:
    """US dollars per million tokens. Both 0: nothing is sold, and there is no margin."""

    usd_per_million_input: float = 0.0
    usd_per_million_output: float = 0.0

    @property
    def is_set(self) -> bool:
        return self.usd_per_million_input > 0 or self.usd_per_million_output > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Money:
    """Of a month of 730 hours. `utilization`: the share of it in which the load stands; GPUs are paid throughout."""

    usd_per_month: float
    output_tokens_per_month: float
    input_tokens_per_month: float
    usd_per_million_output_tokens: float  # all cost on the output
    usd_per_million_tokens: float  # on input and output alike
    revenue_per_month: float | None
    gross_margin: float | None  # (revenue - hosting) / revenue


def money(
    *,
    num_gpus: int,
    usd_per_gpu_hour: float,
    requests_per_second: float,
    input_len: int,
    output_len: int,
    utilization: float = 1.0,
    selling: Selling | None = None,
) -> Money:
    cost = num_gpus * usd_per_gpu_hour * HOURS_PER_MONTH
    requests = requests_per_second * utilization * _SECONDS_PER_MONTH
    inputs, outputs = requests * input_len, requests * output_len
    revenue = None
    if selling is not None and selling.is_set:
        revenue = (inputs * selling.usd_per_million_input + outputs * selling.usd_per_million_output) / 1e6
    return Money(
        usd_per_month=cost,
        output_tokens_per_month=outputs,
        input_tokens_per_month=inputs,
        usd_per_million_output_tokens=cost / outputs * 1e6,
        usd_per_million_tokens=cost / (inputs + outputs) * 1e6,
        revenue_per_month=revenue,
        gross_margin=None if not revenue else (revenue - cost) / revenue,
    )
