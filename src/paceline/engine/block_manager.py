"""BlockManager: the one owner of the paged KV cache's block numbers.

Contract
- Target and draft share block numbers: block b of a sequence is row b of both pools. Block 0 is the null
  block: padding writes there, no table names it as a block of a sequence.
- reserve gives a sequence blocks; publish offers its full blocks to the prefix cache; match_prefix finds
  published blocks; release takes a sequence's blocks back. Nothing else changes a block table.
- A block is published only when it is full of committed tokens below the target's watermark; its key is
  the hash of its request's salt and of every token up to its end, so equal keys mean equal KV. A published
  block also records whether the draft's KV is valid: a hit restores each watermark only as far as its own
  pool goes, and a draft that was at rest (max_tokens=1, K=0 under load) costs the prefix cache nothing.
- A block with no owner stays findable until it is needed for something else; the one unused for longest
  goes first, and within a sequence the tail goes before the head.

Why not one flag for both pools: then a request that never drafts could publish nothing.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from paceline.sequence import Sequence


@dataclass(slots=True)
class Block:
    ref_count: int = 0
    key: bytes | None = None  # set while published
    draft_valid: bool = False


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """Published blocks that hold the start of a sequence, and how many positions each pool has."""

    blocks: list[int]
    num_computed_tokens: int
    num_draft_computed_tokens: int


@dataclass(slots=True)
class _Chain:
    """Block keys of one sequence, and how many of its blocks are published for each pool."""

    keys: list[bytes] = field(default_factory=list)
    num_published: int = 0
    num_draft_published: int = 0


def _root(salt: str) -> bytes:
    """What the first block's key starts from: with another salt, every key of a prompt is another one."""
    return hashlib.blake2b(salt.encode(), digest_size=16, person=b"salt").digest() if salt else b""


def _key(parent: bytes, token_ids: list[int]) -> bytes:
    return hashlib.blake2b(parent + array("q", token_ids).tobytes(), digest_size=16).digest()


class BlockManager:
    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        enable_prefix_caching: bool = True,
        draft_max_len: int | None = None,
    ) -> None:
        """`draft_max_len`: positions past it never need the draft's KV (None: there is no draft)."""
        if num_blocks < 2:
            raise ValueError(f"num_blocks must be at least 2 (one is the null block), not {num_blocks}")
        self.block_size = block_size
        self.num_blocks = num_blocks
        self._caching = enable_prefix_caching
        self._draft_max_len = draft_max_len or 0
        self._blocks = [Block() for _ in range(num_blocks)]
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        self._published: dict[bytes, int] = {}
        self._chains: dict[int, _Chain] = {}
        self.num_prefix_queries = 0  # tokens looked up
        self.num_prefix_hits = 0  # tokens found

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def usage(self) -> float:
        return 1.0 - len(self._free) / (self.num_blocks - 1)

    def blocks_for(self, num_positions: int) -> int:
        return -(-num_positions // self.block_size)

    # -- the four verbs ------------------------------------------------------------------------------

    def match_prefix(self, sequence: Sequence) -> PrefixMatch:
        """Find the longest published prefix that leaves at least one token to compute. Takes nothing.

        A prompt whose tokens are to be scored is computed in full: the cache holds no logits.
        """
        if not self._caching or sequence.wants_prompt_logprobs:
            return PrefixMatch([], 0, 0)
        limit = (sequence.num_tokens - 1) // self.block_size
        blocks: list[int] = []
        num_draft = 0
        for index in range(limit):
            block = self._published.get(self._key_at(sequence, index))
            if block is None:
                break
            if num_draft == index and self._blocks[block].draft_valid:
                num_draft += 1
            blocks.append(block)
        return PrefixMatch(blocks, len(blocks) * self.block_size, num_draft * self.block_size)

    def admit(self, sequence: Sequence, num_positions: int, *, headroom: int = 0) -> PrefixMatch | None:
        """Give a sequence without blocks its cached prefix and room for `num_positions`; None: no room.

        `headroom` blocks must stay free afterwards. On success the watermarks stand at what the cache held.
        """
        assert not sequence.block_table, "admit is for sequences without blocks"
        match = self.match_prefix(sequence)
        idle_hits = sum(1 for block in match.blocks if self._blocks[block].ref_count == 0)
        missing = self.blocks_for(num_positions) - len(match.blocks)
        if missing + headroom > self.num_free - idle_hits:
            return None
        for block in match.blocks:
            self._take(block)
        sequence.block_table.extend(match.blocks)
        sequence.num_computed_tokens = match.num_computed_tokens
        sequence.num_draft_computed_tokens = match.num_draft_computed_tokens
        chain = self._chain(sequence)
        chain.num_published = len(match.blocks)
        chain.num_draft_published = match.num_draft_computed_tokens // self.block_size
        self.num_prefix_queries += sequence.num_tokens
        self.num_prefix_hits += match.num_computed_tokens
        if not self.reserve(sequence, num_positions):
            raise AssertionError("admit counted the free blocks wrongly")
        return match

    def reserve(self, sequence: Sequence, num_positions: int) -> bool:
        """Grow the table to cover `num_positions`. All or nothing; False: not enough free blocks."""
        missing = self.blocks_for(num_positions) - len(sequence.block_table)
        if missing > self.num_free:
            return False
        for _ in range(missing):
            sequence.block_table.append(self._take_oldest_free())
        return True

    def capacity(self, sequence: Sequence) -> int:
        """Positions that the sequence's present blocks cover."""
        return len(sequence.block_table) * self.block_size

    def publish(self, sequence: Sequence) -> None:
        """Offer blocks that have become full below the watermarks; mark those whose draft KV is valid now."""
        if not self._caching:
            return
        chain = self._chain(sequence)
        full = min(sequence.num_computed_tokens, sequence.num_tokens) // self.block_size
        for index in range(chain.num_published, full):
            self._publish_block(sequence.block_table[index], self._key_at(sequence, index))
        chain.num_published = max(chain.num_published, full)
        while chain.num_draft_published < full and self._draft_covers(sequence, chain.num_draft_published):
            self._blocks[sequence.block_table[chain.num_draft_published]].draft_valid = True
            chain.num_draft_published += 1

    def release(self, sequence: Sequence) -> None:
        """Take all blocks back; published ones stay findable until they are needed."""
        for block in reversed(sequence.block_table):
            self._drop(block)
        sequence.block_table.clear()
        sequence.num_computed_tokens = 0
        sequence.num_draft_computed_tokens = 0
        self._chains.pop(sequence.seq_id, None)

    def reset_prefix_cache(self) -> None:
        """Forget every published block."""
        for block in self._published.values():
            self._blocks[block].key = None
            self._blocks[block].draft_valid = False
        self._published.clear()

    # -- inside ---------------------------------------------------------------------------------------

    def _chain(self, sequence: Sequence) -> _Chain:
        return self._chains.setdefault(sequence.seq_id, _Chain())

    def _key_at(self, sequence: Sequence, index: int) -> bytes:
        keys = self._chain(sequence).keys
        while len(keys) <= index:
            start = len(keys) * self.block_size
            parent = keys[-1] if keys else _root(sequence.cache_salt)
            keys.append(_key(parent, sequence.token_ids[start : start + self.block_size]))
        return keys[index]

    def _draft_covers(self, sequence: Sequence, index: int) -> bool:
        """Is block `index` complete for the draft? Past the draft's length there is nothing to complete."""
        end = (index + 1) * self.block_size
        return end <= sequence.num_draft_computed_tokens or end > self._draft_max_len

    def _publish_block(self, block: int, key: bytes) -> None:
        # A second block with the same content stays private: the first one serves every later hit.
        if self._blocks[block].key is None and key not in self._published:
            self._blocks[block].key = key
            self._published[key] = block

    def _take(self, block: int) -> None:
        if self._blocks[block].ref_count == 0:
            del self._free[block]
        self._blocks[block].ref_count += 1

    def _take_oldest_free(self) -> int:
        block, _ = self._free.popitem(last=False)
        state = self._blocks[block]
        if state.key is not None:
            del self._published[state.key]
        self._blocks[block] = Block(ref_count=1)
        return block

    def _drop(self, block: int) -> None:
        state = self._blocks[block]
        state.ref_count -= 1
        if state.ref_count == 0:
            self._free[block] = None
            if state.key is None:
                state.draft_valid = False
                self._free.move_to_end(block, last=False)  # nothing to find in it: use it first

    # -- checks -----------------------------------------------------------------------------------------

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Raise AssertionError unless every block is owned exactly as the sequences' tables say."""
        counts = [0] * self.num_blocks
        for sequence in sequences:
            assert 0 not in sequence.block_table, f"sequence {sequence.seq_id} owns the null block"
            assert len(set(sequence.block_table)) == len(sequence.block_table), "a table names a block twice"
            for block in sequence.block_table:
                counts[block] += 1
            self._check_watermarks(sequence)
        for number, (state, count) in enumerate(zip(self._blocks, counts, strict=True)):
            assert state.ref_count == count, f"block {number}: {state.ref_count} references, {count} owners"
            assert (number in self._free) == (count == 0 and number != 0), f"block {number}: wrongly free or lost"
            assert state.key is None or self._published.get(state.key) == number, f"block {number}: stale key"
        for key, number in self._published.items():
            assert self._blocks[number].key == key, f"the cache names block {number} under a key it has not"

    def _check_watermarks(self, sequence: Sequence) -> None:
        for mark in (sequence.num_computed_tokens, sequence.num_draft_computed_tokens):
            assert 0 <= mark <= sequence.num_tokens, f"watermark {mark} past {sequence.num_tokens} tokens"
            assert mark <= self.capacity(sequence), f"watermark {mark} past the blocks"
