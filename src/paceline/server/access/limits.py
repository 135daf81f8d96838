"""Limits: how much one client, and all of them together, may have under way. What is too much is a 429.

Contract
- A client is a key, or where there are none the address that it asks from. Its requests a minute are a bucket that
  fills evenly: after a pause as many as that may come at once.
- The queue holds answers that wait beyond the `max_num_seqs` that run. A request is taken whole or not at all: where
  its answers do not all find room it is refused for now; where they never could, for good, with a 400.
- Everything is counted in this process, at the moment of the request; nothing waits for the engine.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from paceline.errors import InvalidRequestError
from paceline.server.access.options import AccessOptions
from paceline.server.errors import TooManyRequestsError

_MAX_CLIENTS = 10_000  # idle ones are forgotten beyond that
_MAX_WAIT = 60  # seconds that a client is told to wait at most


@dataclass(slots=True)
class _Client:
    tokens: float
    filled: float
    running: int = 0


@dataclass(slots=True)
class Ticket:
    """What one request holds; `release` gives it back, once."""

    started: float
    num_sequences: int = 0
    _give_back: list[Callable[[], None]] = field(default_factory=list)

    def release(self) -> None:
        for give_back in self._give_back:
            give_back()
        self._give_back.clear()


class Limits:
    def __init__(self, options: AccessOptions, max_num_seqs: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.num_sequences = 0  # under way: running or waiting
        self.num_refused = 0
        self._options = options
        self._max_num_seqs = max_num_seqs
        self._clock = clock
        self._clients: OrderedDict[str, _Client] = OrderedDict()
        self._seconds_per_sequence = 1.0  # mean of the last ones, of their whole stay

    def enter(self, client: str) -> Ticket:
        """One request of `client` begins. Raises TooManyRequestsError."""
        known = self._client(client)
        most = self._options.max_concurrent_requests
        if most is not None and known.running >= most:
            raise self._refuse(
                f"{_requests(known.running)} of yours are running; at most {most} may at once.",
                self._seconds_per_sequence,
                "concurrency_limit_exceeded",
            )
        self._take_from_bucket(known)
        known.running += 1

        def leave() -> None:
            known.running -= 1

        return Ticket(self._clock(), _give_back=[leave])

    def take(self, ticket: Ticket, num_sequences: int) -> None:
        """Its answers go to the engine. Raises TooManyRequestsError, InvalidRequestError."""
        most = self._max_num_seqs + self._options.max_queue
        if num_sequences > most:
            raise InvalidRequestError(
                f"{num_sequences} answers are more than this server takes at once: {self._max_num_seqs} run "
                f"(--max-num-seqs) and {self._options.max_queue} may wait (--max-queue). Ask for fewer in one request.",
                param="n",
            )
        excess = self.num_sequences + num_sequences - most
        if excess > 0:
            waiting = max(0, self.num_sequences - self._max_num_seqs)
            raise self._refuse(
                f"The server is busy: {_answers(waiting)} waiting, and {_more(num_sequences)} not fit.",
                self._seconds_per_sequence * excess / self._max_num_seqs,
                "queue_full",
            )
        self.num_sequences += num_sequences
        ticket.num_sequences += num_sequences

        def done() -> None:
            self.num_sequences -= num_sequences
            stay = self._clock() - ticket.started
            self._seconds_per_sequence += 0.1 * (stay - self._seconds_per_sequence)

        ticket._give_back.append(done)

    def check_tokens(self, num_sequences: int, max_tokens: int, param: str) -> None:
        """Refuse a request whose answers together may become too long."""
        most = self._options.max_request_tokens
        if most is not None and num_sequences * max_tokens > most:
            raise InvalidRequestError(
                _too_many_tokens(num_sequences, max_tokens, most, param),
                param=param,
            )

    def default_tokens(self, num_sequences: int, room: int) -> int | None:
        """The length of an answer that gave none and has `room`, where the limit is less than that; else None."""
        most = self._options.max_request_tokens
        return most // num_sequences if most is not None and num_sequences <= most < num_sequences * room else None

    def deadline(self, ticket: Ticket) -> float | None:
        """When its answer must be finished, on the clock of `started`; None: whenever it is."""
        return None if self.request_timeout is None else ticket.started + self.request_timeout

    @property
    def request_timeout(self) -> float | None:
        """Seconds."""
        return self._options.request_timeout

    def _client(self, name: str) -> _Client:
        known = self._clients.get(name)
        if known is None:
            known = self._clients[name] = _Client(float(self._options.requests_per_minute or 0), self._clock())
            self._forget_idle()
        self._clients.move_to_end(name)
        return known

    def _forget_idle(self) -> None:
        """Whoever asked longest ago and is idle starts afresh; an attack by many addresses finds a bound here."""
        for name in list(self._clients)[: max(0, len(self._clients) - _MAX_CLIENTS)]:
            if not self._clients[name].running:
                del self._clients[name]

    def _take_from_bucket(self, client: _Client) -> None:
        rate = self._options.requests_per_minute
        if rate is None:
            return
        now = self._clock()
        client.tokens = min(float(rate), client.tokens + (now - client.filled) * rate / 60)
        client.filled = now
        if client.tokens < 1:
            raise self._refuse(
                f"At most {rate} requests a minute are taken from you.",
                (1 - client.tokens) * 60 / rate,
                "rate_limit_exceeded",
            )
        client.tokens -= 1

    def _refuse(self, message: str, retry_after: float, code: str) -> TooManyRequestsError:
        self.num_refused += 1
        return TooManyRequestsError(message, max(1, min(_MAX_WAIT, math.ceil(retry_after))), code)


def _too_many_tokens(num_sequences: int, max_tokens: int, most: int, param: str) -> str:
    if num_sequences == 1:
        return f"An answer of up to {max_tokens} tokens is too long; a request may ask for {most}. Lower {param}."
    return (
        f"{num_sequences} answers of up to {max_tokens} tokens are {num_sequences * max_tokens} tokens; a request may "
        f"ask for {most} together. Lower {param} or n."
    )


def _answers(count: int) -> str:
    return "1 answer is" if count == 1 else f"{count} answers are"


def _more(count: int) -> str:
    return "1 more does" if count == 1 else f"{count} more do"


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count} requests"
