"""In what turns the deltas of a report go to their streams: pure functions of `report_reader`.

First tokens go before all others and large steps in pieces; what several plain steps added to a stream that is behind
becomes one delta.
"""

from __future__ import annotations

from collections.abc import Container

from paceline.engine import wire
from paceline.sequence import SequenceDelta

_TURN = 16  # deltas handed out between two rounds of the event loop


def turns(deltas: list[SequenceDelta]) -> list[wire.Report]:
    """The deltas of a large step a few at a time, first tokens before all others.

    A client that has seen nothing yet waits for its first token; what a step of hundreds of streams takes here,
    milliseconds, is lost between two tokens of a stream. Between two turns what was written leaves, and new requests
    are read.
    """
    first = [delta for delta in deltas if begins(delta)]
    later = [delta for delta in deltas if not begins(delta)]
    parts = (first, *(later[start : start + _TURN] for start in range(0, len(later), _TURN)))
    return [wire.Deltas(part) for part in parts if part]


def begins(delta: SequenceDelta) -> bool:
    """It carries the first token of its sequence."""
    return delta.queue_seconds is not None


def merged(deltas: list[SequenceDelta], apart: Container[str] = ()) -> list[SequenceDelta]:
    """With what several steps added to a sequence in one delta, where the steps were plain ones: a stream that is
    behind then costs one event for all of them. Steps with drafts stay apart, and so do all of the requests `apart`.
    """
    result: list[SequenceDelta] = []
    open_deltas: dict[tuple[str, int], SequenceDelta] = {}
    for delta in deltas:
        key = (delta.request_id, delta.index)
        before = open_deltas.get(key)
        if before is not None and _is_plain(delta) and delta.request_id not in apart:
            before.token_ids = before.token_ids + delta.token_ids
            before.text += delta.text
            before.finish_reason, before.stop_reason = delta.finish_reason, delta.stop_reason
            before.speculation = delta.speculation
        else:
            result.append(delta)
            before = delta
        if before.finish_reason is None and _is_plain(before):
            open_deltas[key] = before
        else:
            open_deltas.pop(key, None)
    return result


def _is_plain(delta: SequenceDelta) -> bool:
    """Nothing but tokens and perhaps an ordinary end."""
    return (
        not delta.num_drafted
        and delta.queue_seconds is None
        and delta.logprobs is None
        and delta.prompt_logprobs is None
        and delta.error is None
        and delta.refusal is None
    )
