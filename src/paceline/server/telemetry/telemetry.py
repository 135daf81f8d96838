"""Telemetry: histograms and counters of the API process, and who hears of every finished request.

Latencies are of requests that reached the engine. ITL and TPOT count tokens, not chunks (p40): a step that brings
four tokens after 20 ms counts as four times 5 ms.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from paceline.server.telemetry.histogram import Histogram
from paceline.server.telemetry.record import RequestRecord

# vLLM's buckets, with finer ones at the lower end: speculation emits several tokens a pass.
_FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_PER_TOKEN = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0),
)
_WHOLE = (
    *(0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0),
    *(960.0, 1920.0, 7680.0),
)
_TOKENS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))

Observer = Callable[[RequestRecord], None]


class Telemetry:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.started = clock()
        self.time_to_first_token = Histogram(_FIRST_TOKEN)
        self.inter_token_latency = Histogram(_PER_TOKEN)
        self.time_per_output_token = Histogram(_PER_TOKEN)
        self.e2e_latency = Histogram(_WHOLE)
        self.queue_time = Histogram(_FIRST_TOKEN)
        self.prompt_tokens = Histogram(_TOKENS)
        self.generation_tokens = Histogram(_TOKENS)
        self.num_in_progress = 0
        self.num_aborted = 0
        self.responses: Counter[tuple[str, str, int]] = Counter()  # (method, route, status)
        self.errors: Counter[str] = Counter()  # by kind
        self.observers: list[Observer] = []

    def finish(self, record: RequestRecord) -> None:
        """Count a request that is over, and tell the observers."""
        self.responses[record.method, record.route, record.status] += 1
        if record.error is not None:
            self.errors[record.error] += 1
        if record.is_generation:
            self._count_generation(record)
        for observe in self.observers:
            observe(record)

    def _count_generation(self, record: RequestRecord) -> None:
        self.num_aborted += record.is_aborted
        if record.num_completion_tokens == 0:
            return
        self.prompt_tokens.add(record.num_prompt_tokens)
        self.generation_tokens.add(record.num_completion_tokens)
        if record.queue_seconds is not None:
            self.queue_time.add(record.queue_seconds)
        if record.is_aborted or record.error is not None:
            return  # the rest is of whole answers
        self.e2e_latency.add(record.seconds)
        assert record.first_token is not None
        assert record.last_token is not None
        answers = max(1, len(record.finish_reasons))  # side by side: each has a first token of its own
        if record.num_completion_tokens > answers:
            seconds = (record.last_token - record.first_token) * answers
            self.time_per_output_token.add(seconds / (record.num_completion_tokens - answers))
