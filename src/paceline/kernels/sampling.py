"""From logits to a processed law and a token of it, on the device: temperature, min_p, top_k, top_p, draw.

Contract: the definitions are those of layers/sampling.py.
- Ties at the edge of top_k or top_p are all kept. The edges are found exactly, by search over the bits of the
  probabilities (floats >= 0 order as integers), and only by rows that ask for one; other rows end at once.
- Temperature 0 is the one-hot law of the argmax (the lowest index among equals): its row of `probs` is not written.
- A row whose logits hold NaN or whose largest is infinite is not valid; nothing else of it means anything.
- Sums are taken in one order whatever stands beside a row, so a law has the same bits in any batch.
- Draws invert the distribution function in float64; a token of probability 0 is never drawn.

A row is cut into chunks of CHUNK tokens, one program each, so that a few rows keep the whole card busy. The mass of
every chunk is kept beside the law: a draw reads those and one chunk, not the row.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from paceline.kernels.philox import philox_uniform, uniforms
from paceline.kernels.triton_support import (
    jit,
    launch_options,
    let_next_start,
    runs_triton,
    tl,
    triton,
    wait_for_previous,
)

CHUNK = 4096  # tokens of a program
_SEARCH_TILE = 4096  # tokens a searching program takes at once


class ProcessedLaw(NamedTuple):
    """probs [N, V] float32 (rows of temperature 0 unwritten); argmax [N] int64; valid [N] bool;
    masses [N, C] float64: what `probs` sums to over each chunk, for `draw`."""

    probs: Tensor
    argmax: Tensor
    valid: Tensor
    masses: Tensor


@jit
def _chunk_kernel(
    logits, temperature, peaks, places, sums, row_stride, vocab, num_chunks, CHUNK: tl.constexpr, PDL: tl.constexpr
):
    """Largest logit of a chunk (NaN if it holds NaN), where it is, and the sum of exp((x - largest) / temperature)."""
    wait_for_previous(PDL)
    let_next_start(PDL)
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    index = chunk * CHUNK + tl.arange(0, CHUNK)
    x = tl.load(logits + row * row_stride + index, mask=index < vocab, other=float("-inf")).to(tl.float32)
    is_nan = x != x
    x = tl.where(is_nan, float("-inf"), x)
    peak = tl.max(x, 0)
    at = row * num_chunks + chunk
    tl.store(places + at, tl.min(tl.where(x == peak, index, vocab - 1), 0))
    tl.store(peaks + at, tl.where(tl.max(is_nan.to(tl.int32), 0) > 0, float("nan"), peak))
    heat = tl.load(temperature + row)
    if heat > 0:
        base = tl.where(peak == float("-inf"), 0.0, peak)
        tl.store(sums + at, tl.sum(tl.exp2((x - base) * (1.4426950408889634 / heat)), 0))


@jit
def _law_kernel(
    logits, temperature, peaks, places, sums, probs, argmax, valid, masses,
    row_stride, probs_stride, vocab, num_chunks,
    CHUNK: tl.constexpr, BLOCK_C: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Every program puts the chunks of its row together; then it writes its own chunk of the law."""
    wait_for_previous(PDL)
    let_next_start(PDL)
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    c = tl.arange(0, BLOCK_C)
    in_row = c < num_chunks
    peak = tl.load(peaks + row * num_chunks + c, mask=in_row, other=float("-inf"))
    is_nan = peak != peak
    peak = tl.where(is_nan, float("-inf"), peak)
    top = tl.max(peak, 0)
    if chunk == 0:
        place = tl.load(places + row * num_chunks + c, mask=in_row, other=vocab - 1)
        tl.store(argmax + row, tl.min(tl.where(peak == top, place, vocab - 1), 0).to(tl.int64))
        bad = (tl.max(is_nan.to(tl.int32), 0) > 0) | (tl.abs(top) == float("inf"))
        tl.store(valid + row, bad == 0)
    heat = tl.load(temperature + row)
    if heat > 0:
        scale = 1.4426950408889634 / heat
        part = tl.load(sums + row * num_chunks + c, mask=in_row, other=0.0)
        total = tl.sum(part * tl.exp2((peak - top) * scale), 0)
        index = chunk * CHUNK + tl.arange(0, CHUNK)
        mask = index < vocab
        x = tl.load(logits + row * row_stride + index, mask=mask, other=float("-inf")).to(tl.float32)
        p = tl.exp2((x - top) * scale) / total
        tl.store(probs + row * probs_stride + index, p, mask=mask)
        tl.store(masses + row * num_chunks + chunk, tl.sum(p.to(tl.float64), 0))


@jit
def _tile_of(row, start, vocab, TILE: tl.constexpr):
    """A tile of probabilities and their keys, which are their bits; behind the row -1.0, whose key is below any."""
    index = start + tl.arange(0, TILE)
    p = tl.load(row + index, mask=index < vocab, other=-1.0)
    return p, p.to(tl.int32, bitcast=True)


@jit
def _highest_edge(row, vocab, low, high, target, BY_MASS: tl.constexpr, TILE: tl.constexpr):
    """The largest key t in [low, high) such that the tokens of key >= t number (or weigh) at least `target`.

    `low` is taken to satisfy this and `high` not to. A pass over the row tries three keys between, and shrinks the
    interval to the keys that are there: done when they are all the same.
    """
    while high - low > 1:
        step = tl.maximum((high - low) // 4, 1)
        t1, t2, t3 = low + step, low + 2 * step, low + 3 * step
        f1, f2, f3 = tl.zeros([TILE], tl.float32), tl.zeros([TILE], tl.float32), tl.zeros([TILE], tl.float32)
        # How far the nearest keys lie inside the ends; unsigned, so that keys outside are far away.
        from_low = tl.full([TILE], 0xFFFFFFFF, tl.uint32)
        from_high = tl.full([TILE], 0xFFFFFFFF, tl.uint32)
        for start in range(0, vocab, TILE):
            p, key = _tile_of(row, start, vocab, TILE)
            weight = p if BY_MASS else tl.full([TILE], 1.0, tl.float32)
            f1 += tl.where(key >= t1, weight, 0.0)
            f2 += tl.where(key >= t2, weight, 0.0)
            f3 += tl.where(key >= t3, weight, 0.0)
            from_low = tl.minimum(from_low, (key - low).to(tl.uint32, bitcast=True))
            from_high = tl.minimum(from_high, (high - 1 - key).to(tl.uint32, bitcast=True))
        g1, g2, g3 = tl.sum(f1, 0), tl.sum(f2, 0), tl.sum(f3, 0)
        # No token inside: then all keys of the interval select the same tokens, and it may end up of any width.
        width = (high - 1 - low).to(tl.uint32, bitcast=True)
        least = low + tl.minimum(tl.min(from_low, 0), width).to(tl.int32, bitcast=True)
        most = high - 1 - tl.minimum(tl.min(from_high, 0), width).to(tl.int32, bitcast=True)
        new_low = tl.where(g3 >= target, t3, tl.where(g2 >= target, t2, tl.where(g1 >= target, t1, low)))
        new_high = tl.where(g1 < target, t1, tl.where(g2 < target, t2, tl.where(g3 < target, t3, high)))
        low = tl.maximum(least, new_low)
        high = tl.minimum(tl.maximum(most, low) + 1, tl.maximum(new_high, low + 1))
    return low


@jit
def _mass_from(row, vocab, edge, TILE: tl.constexpr):
    mass = tl.zeros([TILE], tl.float32)
    for start in range(0, vocab, TILE):
        p, key = _tile_of(row, start, vocab, TILE)
        mass += tl.where(key >= edge, p, 0.0)
    return tl.sum(mass, 0)


@jit
def _restrict_kernel(
    probs, temperature, min_p, top_k, top_p, argmax, valid, masses, probs_stride, vocab, num_chunks,
    TILE: tl.constexpr, CHUNK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """min_p, top_k, top_p of one row. Each cuts at a probability, so together they are one edge and one division."""
    wait_for_previous(PDL)
    let_next_start(PDL)
    n = tl.program_id(0).to(tl.int64)
    floor, count, nucleus = tl.load(min_p + n), tl.load(top_k + n), tl.load(top_p + n)
    is_counted = (count > 0) & (count < vocab)
    is_restricted = (floor > 0) | is_counted | (nucleus < 1)
    if (tl.load(temperature + n) > 0) & is_restricted & (tl.load(valid + n) != 0):
        row = probs + n * probs_stride
        top = tl.load(row + tl.load(argmax + n))
        high = top.to(tl.int32, bitcast=True) + 1
        edge = tl.minimum((floor * top).to(tl.int32, bitcast=True), high - 1)
        if is_counted:
            # k tokens of at least the edge's probability weigh no more than 1.
            most = tl.maximum((1.01 / count.to(tl.float32)).to(tl.int32, bitcast=True), edge) + 1
            edge = _highest_edge(row, vocab, edge, tl.minimum(high, most), count.to(tl.float32), False, TILE)
        total = _mass_from(row, vocab, edge, TILE)
        if nucleus < 1:
            # All tokens below this weigh less together than what may be left out.
            least = (0.99 * (1 - nucleus) * total / vocab).to(tl.int32, bitcast=True)
            edge = tl.minimum(tl.maximum(edge, least), high - 1)
            target = tl.maximum(nucleus * total, 1e-30)
            edge = _highest_edge(row, vocab, edge, high, target, True, TILE)
            total = _mass_from(row, vocab, edge, TILE)
        for chunk in range(0, num_chunks):
            index = chunk * CHUNK + tl.arange(0, CHUNK)
            p, key = _tile_of(row, chunk * CHUNK, vocab, CHUNK)
            p = tl.where(key >= edge, p / total, 0.0)
            tl.store(row + index, p, mask=index < vocab)
            tl.store(masses + n * num_chunks + chunk, tl.sum(p.to(tl.float64), 0))


def processed_law(
    logits: Tensor, temperature: Tensor, min_p: Tensor, top_k: Tensor, top_p: Tensor, *,
    probs: Tensor | None = None, restricted: bool = True,
) -> ProcessedLaw:  # fmt: skip
    """The law of each row of logits [N, V] (float32 or bfloat16; rows may lie further apart than V).

    temperature, min_p, top_p [N] float32; top_k [N] int32, 0: no limit. Logit edits come before.
    probs: where to write, [N, V] float32 with contiguous rows. restricted=False promises that no row has a min_p,
    top_k or top_p, and saves the launch that looks.
    """
    num_rows, vocab = logits.shape
    if probs is None:
        probs = torch.empty((num_rows, vocab), dtype=torch.float32, device=logits.device)
    if not runs_triton(logits):
        return _law_reference(logits, temperature, min_p, top_k, top_p, probs)
    temperature, min_p, top_k, top_p = (v.contiguous() for v in (temperature, min_p, top_k, top_p))
    num_chunks, device = triton.cdiv(vocab, CHUNK), logits.device
    peaks, sums = torch.empty((2, num_rows, num_chunks), dtype=torch.float32, device=device)
    places = torch.empty((num_rows, num_chunks), dtype=torch.int32, device=device)
    masses = torch.empty((num_rows, num_chunks), dtype=torch.float64, device=device)
    argmax = torch.empty(num_rows, dtype=torch.int64, device=device)
    valid = torch.empty(num_rows, dtype=torch.bool, device=device)
    grid, options = (num_rows, num_chunks), launch_options(logits, num_warps=8)
    _chunk_kernel[grid](
        logits, temperature, peaks, places, sums, logits.stride(0), vocab, num_chunks, CHUNK=CHUNK, **options
    )
    _law_kernel[grid](
        logits, temperature, peaks, places, sums, probs, argmax, valid, masses,
        logits.stride(0), probs.stride(0), vocab, num_chunks,
        CHUNK=CHUNK, BLOCK_C=triton.next_power_of_2(num_chunks), **options,
    )  # fmt: skip
    if restricted:
        _restrict_kernel[(num_rows,)](
            probs, temperature, min_p, top_k, top_p, argmax, valid, masses, probs.stride(0), vocab, num_chunks,
            TILE=_SEARCH_TILE, CHUNK=CHUNK, **launch_options(logits, num_warps=32),
        )  # fmt: skip
    return ProcessedLaw(probs, argmax, valid, masses)


@jit
def choose_chunk(mass, u, BLOCK_C: tl.constexpr):
    """mass [BLOCK_C] float64 >= 0, u in [0, 1): which chunk the draw falls into, what lies before it, the target."""
    c = tl.arange(0, BLOCK_C)
    cumulative = tl.cumsum(mass, 0)
    target = u * tl.max(cumulative, 0)
    beyond = tl.min(tl.where((cumulative > target) & (mass > 0), c, BLOCK_C), 0)
    last = tl.max(tl.where(mass > 0, c, 0), 0)  # rounding put the target at the very end
    chunk = tl.minimum(beyond, last)
    return chunk, tl.sum(tl.where(c == chunk - 1, cumulative, 0.0), 0), target


@jit
def choose_in_chunk(p, before, target, CHUNK: tl.constexpr):
    """p [CHUNK] float64: the first index whose cumulative mass passes the target; never one of mass 0."""
    index = tl.arange(0, CHUNK)
    beyond = tl.min(tl.where((before + tl.cumsum(p, 0) > target) & (p > 0), index, CHUNK), 0)
    return tl.minimum(beyond, tl.max(tl.where(p > 0, index, 0), 0))


@jit
def _draw_kernel(
    probs, argmax, temperature, masses, numbers, seeds, positions, tokens, probs_stride, vocab, num_chunks, purpose,
    SEEDED: tl.constexpr, CHUNK: tl.constexpr, BLOCK_C: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    wait_for_previous(PDL)
    let_next_start(PDL)
    row = tl.program_id(0).to(tl.int64)
    token = tl.load(argmax + row)
    if tl.load(temperature + row) > 0:
        if SEEDED:
            u = philox_uniform(tl.load(seeds + row), tl.load(positions + row).to(tl.int64), purpose)
        else:
            u = tl.load(numbers + row)
        c = tl.arange(0, BLOCK_C)
        mass = tl.load(masses + row * num_chunks + c, mask=c < num_chunks, other=0.0)
        chunk, before, target = choose_chunk(mass, u, BLOCK_C)
        index = chunk * CHUNK + tl.arange(0, CHUNK)
        p = tl.load(probs + row * probs_stride + index, mask=index < vocab, other=0.0).to(tl.float64)
        token = (chunk * CHUNK + choose_in_chunk(p, before, target, CHUNK)).to(tl.int64)
    tl.store(tokens + row, token)


def draw(law: ProcessedLaw, temperature: Tensor, u: Tensor) -> Tensor:
    """One token a row, int64 [N]: of the law with u [N] float64 in [0, 1), or its argmax where temperature is 0."""
    if not runs_triton(law.probs):
        return _draw_reference(law, temperature, u)
    return _launch_draw(law, temperature, u, law.argmax, law.argmax, 0, seeded=False)


def draw_seeded(law: ProcessedLaw, temperature: Tensor, seeds: Tensor, positions: Tensor, purpose: int) -> Tensor:
    """As `draw` with u = uniforms(seeds, positions, purpose), in one launch."""
    if not runs_triton(law.probs):
        return _draw_reference(law, temperature, uniforms(seeds, positions, purpose))
    return _launch_draw(law, temperature, law.masses, seeds, positions, purpose, seeded=True)


def _launch_draw(
    law: ProcessedLaw, temperature: Tensor, u: Tensor, seeds: Tensor, positions: Tensor, purpose: int, *, seeded: bool
) -> Tensor:
    temperature, u, seeds, positions = (v.contiguous() for v in (temperature, u, seeds, positions))
    num_rows, vocab = law.probs.shape
    num_chunks = law.masses.shape[1]
    tokens = torch.empty(num_rows, dtype=torch.int64, device=law.probs.device)
    _draw_kernel[(num_rows,)](
        law.probs, law.argmax, temperature, law.masses, u, seeds, positions, tokens,
        law.probs.stride(0), vocab, num_chunks, purpose,
        SEEDED=seeded, CHUNK=CHUNK, BLOCK_C=triton.next_power_of_2(num_chunks), **launch_options(tokens, num_warps=8),
    )  # fmt: skip
    return tokens


def _law_reference(
    logits: Tensor, temperature: Tensor, min_p: Tensor, top_k: Tensor, top_p: Tensor, probs: Tensor
) -> ProcessedLaw:
    logits = logits.float()
    best, argmax = logits.max(-1)
    random = (temperature > 0).nonzero().squeeze(1)
    law = torch.softmax((logits[random] - best[random, None]) / temperature[random, None], -1)
    law = _keep_from(law, min_p[random, None] * law.amax(-1, keepdim=True))
    order = law.sort(-1, descending=True).values
    k = torch.where(top_k[random] > 0, top_k[random].clamp(max=law.shape[1]), law.shape[1]).long()
    law = _keep_from(law, order.gather(-1, k[:, None] - 1))
    order = law.sort(-1, descending=True).values
    is_kept = order.cumsum(-1) - order < top_p[random, None]
    last = (is_kept.sum(-1, keepdim=True) - 1).clamp(min=0)
    edge = order.gather(-1, last).masked_fill(top_p[random, None] >= 1, 0.0)
    probs[random] = _keep_from(law, edge)
    padded = torch.nn.functional.pad(probs.double(), (0, -probs.shape[1] % CHUNK))
    return ProcessedLaw(probs, argmax, best.isfinite(), padded.view(probs.shape[0], -1, CHUNK).sum(-1))


def _keep_from(probs: Tensor, edge: Tensor) -> Tensor:
    kept = torch.where(probs >= edge, probs, 0.0)
    return kept / kept.sum(-1, keepdim=True)


def _draw_reference(law: ProcessedLaw, temperature: Tensor, u: Tensor) -> Tensor:
    cumulative = law.probs.double().cumsum(-1)
    tokens = torch.searchsorted(cumulative, u[:, None] * cumulative[:, -1:], right=True).squeeze(-1)
    return torch.where(temperature > 0, tokens.clamp(max=law.probs.shape[1] - 1), law.argmax)
