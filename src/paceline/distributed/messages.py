"""The words between the leader and a follower: msgspec structs, MessagePack on a pair of sockets.

The leader sends Submit and Collect in the order in which it does the same itself; a follower answers with its state
while it starts, with a Digest every few steps, and with Failed where it cannot go on. Nothing is pickled.
"""

from __future__ import annotations

import zlib

import msgspec

from paceline.plan import StepPlan, StepResult


class Setup(msgspec.Struct, kw_only=True):
    """The first line of a follower's standard input."""

    rank: int
    size: int
    draft_size: int
    port: int  # of the store where the ranks meet
    reports: int  # file descriptor of its end of the sockets
    check_every: int  # steps between two digests
    num_threads: int  # of torch on a CPU: the same on all ranks, so that sums are cut at the same places
    config: str  # the EngineConfig, as JSON


class Submit(msgspec.Struct, tag="submit"):
    plan: StepPlan


class Collect(msgspec.Struct, tag="collect"):
    pass


class Stop(msgspec.Struct, tag="stop"):
    pass


Command = Submit | Collect | Stop


class Up(msgspec.Struct, tag="up"):
    """The process runs and is about to meet the others."""


class Loaded(msgspec.Struct, tag="loaded"):
    """The weights are in memory."""


class Ready(msgspec.Struct, tag="ready"):
    """Takes commands. `memory`: what this rank will have in use, in words."""

    memory: str


class Digest(msgspec.Struct, tag="digest"):
    """What the rank committed in a step, in 32 bits."""

    step_id: int
    value: int


class Failed(msgspec.Struct, tag="failed"):
    kind: str  # the error's class
    message: str


Report = Up | Loaded | Ready | Digest | Failed

encode = msgspec.msgpack.Encoder().encode
decode_command = msgspec.msgpack.Decoder(Command).decode
decode_report = msgspec.msgpack.Decoder(Report).decode


def digest(result: StepResult) -> int:
    """Of what all ranks must agree on: the tokens of every row, how many drafts were made and how many kept."""
    rows = [(row.seq_id, row.num_drafted, row.num_accepted, row.output_token_ids) for row in result.rows]
    return zlib.crc32(encode(rows))
