"""Where a sequence ends inside the tokens of one step.

A grammar's end is an end whatever min_tokens says: it is legal too early only where nothing else is.

The checks run token by token, in the order the tokens were emitted, so nothing after an end is kept: EOS
and stop tokens (once min_tokens are out), stop strings, then max_tokens. All limits on length are in
`sequence.max_tokens`, resolved at admission.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.sequence import FinishReason, Sequence


@dataclass(frozen=True, slots=True)
class Ending:
    """How many of the step's tokens are kept, and why the sequence ends with the last of them, if it does."""

    num_kept: int
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


def find_ending(sequence: Sequence, run: list[int]) -> Ending:
    """Decide how much of `run` is kept. Feeds the kept tokens to the sequence's text stream."""
    ending = _token_ending(sequence, run)
    if sequence.text is None:
        return ending
    kept = sequence.text.feed(run[: ending.num_kept - _hides_stop_token(sequence, ending)])
    if kept.stop is not None:
        return Ending(kept.num_tokens, FinishReason.STOP, kept.stop)
    return ending


def _hides_stop_token(sequence: Sequence, ending: Ending) -> bool:
    """As in vLLM the token that ends an answer is among its ids, and in its text only if that was asked for."""
    return ending.finish_reason is FinishReason.STOP and not sequence.params.include_stop_str_in_output


def _token_ending(sequence: Sequence, run: list[int]) -> Ending:
    stop_ids = sequence.params.stop_token_ids
    for count, token_id in enumerate(run, start=1):
        emitted = sequence.num_output_tokens + count
        if emitted > sequence.params.min_tokens or token_id in sequence.grammar_end_token_ids:
            if token_id in sequence.eos_token_ids and not sequence.params.ignore_eos:
                return Ending(count, FinishReason.STOP)
            if token_id in stop_ids:
                return Ending(count, FinishReason.STOP, token_id)
        if emitted >= sequence.max_tokens:
            return Ending(count, FinishReason.LENGTH)
    return Ending(len(run))
