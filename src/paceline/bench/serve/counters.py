"""A server's counters before and after a case: acceptance and where the time of its steps went.

Paceline's and vLLM's names differ in their prefix alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import httpx
from prometheus_client.parser import text_string_to_metric_families

PREFIXES = {"paceline": "Paceline", "vllm": "vLLM"}
_SPECULATION = {
    "spec_decode_num_drafts": "drafts",
    "spec_decode_num_draft_tokens": "draft_tokens",
    "spec_decode_num_accepted_tokens": "accepted_tokens",
}
_SECONDS = {f"{part}_seconds": f"{part}_seconds" for part in ("draft", "verify", "accept", "step")}
_OTHERS = {
    "num_preemptions": "preemptions", "generation_tokens": "generation_tokens", "engine_steps": "steps",
    "spec_decode_passes": "passes",
}  # fmt: skip
_WANTED = _SPECULATION | _SECONDS | _OTHERS
_PER_POSITION = "spec_decode_num_accepted_tokens_per_pos"
# A server may go on counting while it is read, so that one counter is of a moment later than another.
LITTLE, FEW = 0.02, 16.0


@dataclass(frozen=True, slots=True)
class Counters:
    """`server`: 'Paceline', 'vLLM' or ''."""

    server: str = ""
    values: Mapping[str, float] = field(default_factory=dict)
    accepted_per_position: tuple[float, ...] = ()

    def since(self, earlier: Counters) -> Counters:
        """The difference; empty where a server was restarted in between, could not be asked before, or contradicts
        itself."""
        if not earlier.server:
            return Counters(self.server)
        rises = {name: value - earlier.values.get(name, 0.0) for name, value in self.values.items()}
        before = earlier.accepted_per_position
        positions = tuple(
            value - (before[place] if place < len(before) else 0.0)
            for place, value in enumerate(self.accepted_per_position)
        )
        if min((*rises.values(), *positions), default=0.0) < 0 or counters_problem(rises, positions):
            return Counters(self.server)
        return Counters(self.server, rises, positions)


def counters_problem(rises: Mapping[str, float], accepted_per_position: Sequence[float]) -> str:
    """Which two of them contradict each other; '' if none do."""
    drafts, draft_tokens, accepted = (rises.get(name, 0.0) for name in ("drafts", "draft_tokens", "accepted_tokens"))
    by_place = sum(accepted_per_position)
    at_most = [
        ("drafts", drafts, "draft_tokens", draft_tokens),
        ("accepted_tokens", accepted, "draft_tokens", draft_tokens),
    ]
    if rises.get("passes"):  # 0 where another runtime does not tell
        at_most.append(("drafts", drafts, "passes", rises["passes"]))
    if accepted_per_position:
        at_most += [
            ("the sum of accepted_per_position", by_place, "accepted_tokens", accepted),
            ("accepted_tokens", accepted, "the sum of accepted_per_position", by_place),
            ("the first of accepted_per_position", accepted_per_position[0], "drafts", drafts),
        ]
    for name, value, limit_name, limit in at_most:
        if value > limit * (1 + LITTLE) + FEW:
            return f"{name} is {value:g}, and {limit_name} {limit:g}"
    return ""


def parse_counters(text: str) -> Counters:
    """Sums over labels other than the position: a server may have several engines."""
    server = ""
    values: dict[str, float] = {}
    positions: dict[int, float] = {}
    for family in text_string_to_metric_families(text):
        prefix, colon, name = family.name.removesuffix("_total").partition(":")
        if not colon or prefix not in PREFIXES:
            continue
        server = PREFIXES[prefix]
        for sample in family.samples:
            if sample.name.endswith("_created"):
                continue
            if name == _PER_POSITION:
                place = int(sample.labels.get("position", 0))
                positions[place] = positions.get(place, 0.0) + sample.value
            elif name in _WANTED:
                values[_WANTED[name]] = values.get(_WANTED[name], 0.0) + sample.value
    return Counters(server, values, tuple(positions.get(place, 0.0) for place in range(max(positions, default=-1) + 1)))


async def read_counters(client: httpx.AsyncClient) -> Counters:
    """Empty where /metrics is not there or not readable: the figures that need it are then left out."""
    try:
        response = await client.get("/metrics")
        return parse_counters(response.text) if response.status_code == 200 else Counters()
    except (httpx.HTTPError, ValueError):
        return Counters()
