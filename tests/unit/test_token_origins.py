"""Where tokens came from: what the executor did, seen at the other end of the wire."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from engine.tagged import TaggedExecutor, make_engine, request, run
from unit.test_text_client import Letters

from paceline.engine import wire
from paceline.plan import RowPlan, RowResult
from paceline.sampling_params import SamplingParams
from paceline.sequence import SequenceDelta
from paceline.server.token_origins import TokenOrigins, origins_of


def ragged(row: RowPlan, place: int) -> bool:
    return place < (row.num_committed_tokens * 2654435761 >> 7) % 5


@dataclass
class Recording(TaggedExecutor):
    """Keeps what the rows gave."""

    given: list[RowResult] = field(default_factory=list)

    def _row(self, row: RowPlan) -> RowResult:
        self.given.append(super()._row(row))
        return self.given[-1]


def answer(number: int, k: int = 4, **params: Any) -> tuple[list[RowResult], list[SequenceDelta]]:
    """What the target did for one request, and the deltas as the server gets them."""
    executor = Recording(accepts=ragged)
    engine = make_engine(executor, decoder=Letters(), k=k)
    engine.add_request(request("a", [number, 3, 4], max_tokens=40, **params))
    report = wire.decode_report(wire.encode(wire.Deltas(run(engine)["a/0"])))
    assert isinstance(report, wire.Deltas)
    return executor.given, report.deltas


def of_result(result: RowResult) -> list[str]:
    own = "bonus" if result.num_accepted == result.num_drafted else "recovered"
    return ["accepted"] * result.num_accepted + [own if result.num_drafted else "plain"]


def test_origins_are_what_the_target_did() -> None:
    seen: Counter[str] = Counter()
    for number in range(12):
        given, deltas = answer(number)
        for result, delta in zip(given, deltas, strict=True):
            origins = origins_of(delta)
            assert origins == of_result(result)[: len(delta.token_ids)]
            assert len(origins) == len(delta.token_ids)
            seen.update(origins)
    assert set(seen) == {"accepted", "recovered", "bonus", "plain"}
    assert min(seen.values()) >= 3


@pytest.mark.parametrize("params", [{"k": 0}, {"speculation": {"num_speculative_tokens": 0}}])
def test_without_drafts_every_token_is_plain(params: dict[str, Any]) -> None:
    assert {origin for delta in answer(1, **params)[1] for origin in origins_of(delta)} == {"plain"}


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"ignore_eos": True},
        {"skip_special_tokens": False},
        {"include_stop_str_in_output": True, "skip_special_tokens": False},
        {"stop_token_ids": [5, 6, 7]},
        {"stop": ["é", "a€"]},
        {"stop": ["a€a€a"], "include_stop_str_in_output": True},
    ],
)
def test_p23_the_texts_of_tokens_joined_are_the_text_of_the_answer(params: dict[str, Any]) -> None:
    num_several = 0
    for number in range(12):
        _, deltas = answer(number, **params)
        origins = TokenOrigins(Letters(), SamplingParams(**params), 1)  # type: ignore[arg-type]
        written = ""
        for delta in deltas:
            told = origins.mark({}, 0, delta)["paceline"]
            written += "".join(told["texts"])
            assert len(told["texts"]) == len(told["origins"]) == len(delta.token_ids)
            num_several += sum(map(bool, told["texts"])) > 1
        assert written == "".join(delta.text for delta in deltas)
    assert num_several >= 3
