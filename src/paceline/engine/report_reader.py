"""ReportReader: what the engine process sends, read as it comes and handed out in turns.

Contract
- Every report goes to `arrived` once, when it is looked at, and to `take` once, in the order of sending; deltas go to
  `take` in the pieces and with the merging of `delta_turns`, those of the requests in `apart` unmerged.
- Between two turns the event loop goes round: what was written leaves, and new requests are read.
- `run` is cancelled when the process ends; `drain` then hands out the rest. Nothing is lost between the two: not what
  was read and not handed out, nor a message that came in the very moment of the cancellation.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Container

import zmq.asyncio

from paceline.engine import wire
from paceline.engine.delta_turns import begins, merged, turns
from paceline.sequence import SequenceDelta

_ROUNDS_TO_BEGIN = 10  # of the event loop, in which a stream sends its head and its first token
_MOST_BACKLOG = 8  # reports that are read before any is handed out
_LAST_WORDS_MS = 50  # for what a process that has ended sent just before

Handler = Callable[[wire.Report], None]


class ReportReader:
    def __init__(self, socket: zmq.asyncio.Socket, take: Handler, arrived: Handler, apart: Container[str]) -> None:
        self._socket = socket
        self._take = take
        self._arrived = arrived
        self._apart = apart
        self._messages: deque[bytes] = deque()  # read and not looked at
        self._turns: deque[wire.Report] = deque()  # to be handed out
        self._receiving: asyncio.Future[bytes] | None = None

    async def run(self) -> None:
        """Until cancelled. Raises msgspec.MsgspecError for a message that nobody understands."""
        while True:
            await self._receive()
            while len(self._messages) < _MOST_BACKLOG and await self._socket.poll(0):
                await self._receive()
            self._sort_messages()
            while self._turns:
                is_beginning = self._hand_out()
                for _ in range(_ROUNDS_TO_BEGIN if is_beginning else 1):
                    await asyncio.sleep(0)

    async def drain(self, is_over: Callable[[], bool]) -> None:
        """Hand out, in order, what the process sent before it ended, until `is_over`: its last words say why.

        Raises as `run` does.
        """
        self._keep_received()
        while not is_over():
            while self._turns:
                self._hand_out()
            self._sort_messages()
            if not self._turns:
                if not await self._socket.poll(_LAST_WORDS_MS):
                    return
                await self._receive()

    async def _receive(self) -> None:
        receiving = self._receiving = asyncio.ensure_future(self._socket.recv())
        await receiving
        self._keep_received()

    def _keep_received(self) -> None:
        """A message may have come in the moment in which who waited for it was cancelled."""
        received, self._receiving = self._receiving, None
        if received is not None and received.done() and not received.cancelled():
            self._messages.append(received.result())

    def _sort_messages(self) -> None:
        """What was read, as turns in order. There is more than one message where this process cannot keep up."""
        deltas: list[SequenceDelta] = []
        while self._messages:
            report = wire.decode_report(self._messages.popleft())
            self._arrived(report)
            if isinstance(report, wire.Deltas):
                deltas += report.deltas
                continue
            self._turns += (*turns(merged(deltas, self._apart)), report)
            deltas = []
        self._turns += turns(merged(deltas, self._apart))

    def _hand_out(self) -> bool:
        """The next turn. Did it begin streams?"""
        turn = self._turns.popleft()
        self._take(turn)
        return isinstance(turn, wire.Deltas) and begins(turn.deltas[0])
