"""The decision over a step's drafts in two launches: how many are kept, and which token follows them.

Contract: the semantics of speculative/rejection.py. With p the target's and q the draft's law at a place, a draft x is
kept while u * q(x) < p(x); at the first rejection the token is drawn from max(p - q, 0), or from p where that is empty
or nothing was left to reject. Rows of temperature 0 keep a draft that is the argmax and end on the argmax.

The answer is packed, one row for each sequence, so that a step's only copy to the host is one tensor.
"""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.kernels.philox import philox_uniform, uniforms
from paceline.kernels.sampling import CHUNK, choose_chunk, choose_in_chunk
from paceline.kernels.triton_support import (
    jit,
    launch_options,
    let_next_start,
    runs_triton,
    tl,
    triton,
    wait_for_previous,
)

_ACCEPT, _TARGET = 1, 2  # layers/random.py's Purpose


@jit
def _decide(
    b, drafts, num_drafted, probs, argmax, draft_probs, temperature, seeds, positions, rates,
    K, probs_stride, draft_stride,
    BLOCK_K: tl.constexpr, HAS_P: tl.constexpr, HAS_Q: tl.constexpr, SYNTHETIC: tl.constexpr,
):  # fmt: skip
    """num_accepted of row b, its drafts [BLOCK_K] (-1: none), and the draft that was rejected (-1: none was)."""
    k = tl.arange(0, BLOCK_K)
    drafted = (k < K) & (k < tl.load(num_drafted + b))
    draft = tl.load(drafts + b * K + k, mask=drafted, other=-1).to(tl.int64)
    there = draft >= 0
    heat = tl.load(temperature + b)
    if SYNTHETIC:
        u = philox_uniform(tl.load(seeds + b) + tl.zeros_like(draft), tl.load(positions + b).to(tl.int64) + k, 1)
        kept = there & (u < tl.load(rates + b * K + k, mask=k < K, other=0.0).to(tl.float64))
    else:
        kept = there & (draft == tl.load(argmax + b * (K + 1) + k, mask=there, other=-1))
        if HAS_P:  # noqa: SIM102 - decided when compiled, and the test inside it on the device
            if heat > 0:
                u = philox_uniform(
                    tl.load(seeds + b) + tl.zeros_like(draft), tl.load(positions + b).to(tl.int64) + k, 1
                )
                p = tl.load(probs + (b * (K + 1) + k) * probs_stride + draft, mask=there, other=0.0).to(tl.float64)
                if HAS_Q:
                    q = tl.load(draft_probs + (b * K + k) * draft_stride + draft, mask=there, other=0.0)
                    u = u * q.to(tl.float64)
                kept = there & (u < p)
    num_accepted = tl.minimum(tl.min(tl.where(kept, 1 << 30, k), 0), K)
    rejected = tl.max(tl.where((k == num_accepted) & there, draft, -1), 0)
    return num_accepted, draft, rejected


@jit
def _last_law(
    b, place, rejected, probs, draft_probs, index, mask, K, probs_stride, draft_stride,
    HAS_Q: tl.constexpr, SYNTHETIC: tl.constexpr,
):  # fmt: skip
    """p and max(p - q, 0) at `index` of row b's place, float64; the same twice where nothing was rejected."""
    p = tl.load(probs + (b * (K + 1) + place) * probs_stride + index, mask=mask, other=0.0)
    residual = p
    if not SYNTHETIC:  # noqa: SIM102
        if rejected >= 0:
            if HAS_Q:
                q = tl.load(draft_probs + (b * K + place) * draft_stride + index, mask=mask, other=0.0)
            else:
                q = tl.where(index == rejected, 1.0, 0.0)
            residual = tl.maximum(p - q, 0.0)
    return p.to(tl.float64), residual.to(tl.float64)


@jit
def _masses_kernel(
    drafts, num_drafted, probs, argmax, draft_probs, temperature, seeds, positions, rates, p_masses, residual_masses,
    K, probs_stride, draft_stride, vocab, num_chunks,
    CHUNK: tl.constexpr, BLOCK_K: tl.constexpr, HAS_Q: tl.constexpr, SYNTHETIC: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """What the last token's law weighs over each chunk; rows of temperature 0 have nothing to weigh."""
    wait_for_previous(PDL)
    let_next_start(PDL)
    b, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if tl.load(temperature + b) > 0:
        place, _, rejected = _decide(
            b, drafts, num_drafted, probs, argmax, draft_probs, temperature, seeds, positions, rates,
            K, probs_stride, draft_stride, BLOCK_K, True, HAS_Q, SYNTHETIC,
        )  # fmt: skip
        index = chunk * CHUNK + tl.arange(0, CHUNK)
        p, residual = _last_law(
            b, place, rejected, probs, draft_probs, index, index < vocab, K, probs_stride, draft_stride,
            HAS_Q, SYNTHETIC,
        )  # fmt: skip
        tl.store(p_masses + b * num_chunks + chunk, tl.sum(p, 0))
        tl.store(residual_masses + b * num_chunks + chunk, tl.sum(residual, 0))


@jit
def _accept_kernel(
    drafts, num_drafted, probs, argmax, valid, draft_probs, temperature, seeds, positions, rates,
    p_masses, residual_masses, packed, K, probs_stride, draft_stride, vocab, num_chunks,
    CHUNK: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr, HAS_P: tl.constexpr, HAS_Q: tl.constexpr,
    SYNTHETIC: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    wait_for_previous(PDL)
    let_next_start(PDL)
    b = tl.program_id(0).to(tl.int64)
    place, draft, rejected = _decide(
        b, drafts, num_drafted, probs, argmax, draft_probs, temperature, seeds, positions, rates,
        K, probs_stride, draft_stride, BLOCK_K, HAS_P, HAS_Q, SYNTHETIC,
    )  # fmt: skip
    last = tl.load(argmax + b * (K + 1) + place)
    if HAS_P:  # noqa: SIM102
        if tl.load(temperature + b) > 0:
            u = philox_uniform(tl.load(seeds + b), tl.load(positions + b).to(tl.int64) + place, 2)
            c = tl.arange(0, BLOCK_C)
            mass = tl.load(residual_masses + b * num_chunks + c, mask=c < num_chunks, other=0.0)
            is_empty = tl.sum(mass, 0) <= 0
            if is_empty:
                mass = tl.load(p_masses + b * num_chunks + c, mask=c < num_chunks, other=0.0)
            chunk, before, target = choose_chunk(mass, u, BLOCK_C)
            index = chunk * CHUNK + tl.arange(0, CHUNK)
            p, residual = _last_law(
                b, place, rejected, probs, draft_probs, index, index < vocab, K, probs_stride, draft_stride,
                HAS_Q, SYNTHETIC,
            )  # fmt: skip
            chosen = choose_in_chunk(tl.where(is_empty, p, residual), before, target, CHUNK)
            last = (chunk * CHUNK + chosen).to(tl.int64)
    j = tl.arange(0, BLOCK_K)
    tokens = tl.where(j < place, draft, tl.where(j == place, last, -1))
    out = packed + b * (K + 3)
    tl.store(out, place)
    tl.store(out + 1, tl.load(valid + b * (K + 1) + place).to(tl.int32))
    tl.store(out + 2 + j, tokens.to(tl.int32), mask=j <= K)


def accept(
    draft_token_ids: Tensor, num_drafted: Tensor, argmax: Tensor, valid: Tensor, temperature: Tensor,
    seeds: Tensor, positions: Tensor, *,
    probs: Tensor | None = None, draft_probs: Tensor | None = None, synthetic_rates: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Decide B rows: int32 [B, K+3] = num_accepted, valid, then K+1 output_token_ids, padding -1.

    draft_token_ids  [B, K] int64 or int32, padding -1; num_drafted [B] int32 or int64: the rest is padding, whatever
                     it holds
    argmax, valid    [B, K+1] of the target's laws
    probs            [B, K+1, V] float32 of the target's laws; read at rows of temperature > 0 alone. None: there are
                     no such rows, and one launch is enough
    draft_probs      [B, K, V] float32, the laws drawn from; None: drafts were not drawn (one-hot)
    temperature      [B] float32; seeds [B] int64; positions [B]: the position that place 0 is for
    synthetic_rates  [B, K] float32, for benchmarks alone: draft i is kept where u < rates[i], whatever the laws say
    """
    num_rows, k = draft_token_ids.shape
    if not runs_triton(argmax):
        return _accept_reference(
            draft_token_ids, num_drafted, argmax, valid, temperature, seeds, positions, probs, draft_probs,
            synthetic_rates,
        )  # fmt: skip
    draft_token_ids, argmax, valid = draft_token_ids.contiguous(), argmax.contiguous(), valid.contiguous()
    num_drafted, temperature = num_drafted.contiguous(), temperature.contiguous()
    seeds, positions = seeds.contiguous(), positions.contiguous()
    has_p, has_q = probs is not None, draft_probs is not None and k > 0
    p = probs if probs is not None else temperature
    q = draft_probs if draft_probs is not None and k > 0 else temperature
    rates = synthetic_rates.contiguous() if synthetic_rates is not None and k > 0 else temperature
    drafts = draft_token_ids if k > 0 else argmax
    vocab = p.shape[-1] if has_p else 1
    p_stride, q_stride = p.stride(-2) if has_p else 0, q.stride(-2) if has_q else 0
    num_chunks = triton.cdiv(vocab, CHUNK)
    packed = torch.empty((num_rows, k + 3), dtype=torch.int32, device=argmax.device)
    masses = torch.empty((2, num_rows, num_chunks), dtype=torch.float64, device=argmax.device)
    shape = {"CHUNK": CHUNK, "BLOCK_K": triton.next_power_of_2(k + 1), "HAS_Q": has_q,
             "SYNTHETIC": synthetic_rates is not None, **launch_options(argmax, num_warps=8)}  # fmt: skip
    if has_p:
        _masses_kernel[(num_rows, num_chunks)](
            drafts, num_drafted, p, argmax, q, temperature, seeds, positions, rates, masses[0], masses[1],
            k, p_stride, q_stride, vocab, num_chunks, **shape,
        )  # fmt: skip
    _accept_kernel[(num_rows,)](
        drafts, num_drafted, p, argmax, valid, q, temperature, seeds, positions, rates, masses[0], masses[1], packed,
        k, p_stride, q_stride, vocab, num_chunks,
        BLOCK_C=triton.next_power_of_2(num_chunks), HAS_P=has_p, **shape,
    )  # fmt: skip
    return packed


def _accept_reference(
    drafts: Tensor, num_drafted: Tensor, argmax: Tensor, valid: Tensor, temperature: Tensor, seeds: Tensor,
    positions: Tensor, probs: Tensor | None, draft_probs: Tensor | None, rates: Tensor | None,
) -> Tensor:  # fmt: skip
    """One row after the other, as the papers have it."""
    num_rows, k = drafts.shape
    packed = torch.full((num_rows, k + 3), -1, dtype=torch.int32, device=argmax.device)
    places = torch.arange(k + 1, device=argmax.device)
    for b in range(num_rows):
        here = positions[b].long() + places
        u_accept = uniforms(seeds[b].expand(k + 1), here, _ACCEPT)
        is_random = probs is not None and float(temperature[b]) > 0
        place, rejected = 0, -1
        while place < min(k, int(num_drafted[b])) and int(drafts[b, place]) >= 0:
            x = int(drafts[b, place])
            p = probs[b, place, x].double() if probs is not None and is_random else (argmax[b, place] == x).double()
            q = draft_probs[b, place, x].double() if draft_probs is not None and is_random else 1.0
            kept = u_accept[place] < rates[b, place] if rates is not None else u_accept[place] * q < p
            if not kept:
                rejected = x
                break
            place += 1
        last = argmax[b, place]
        if probs is not None and is_random:
            law = probs[b, place]
            if rejected >= 0 and rates is None:
                one_hot = torch.zeros_like(law).index_fill_(0, torch.tensor([rejected], device=law.device), 1.0)
                residual = (law - (one_hot if draft_probs is None else draft_probs[b, place])).clamp(min=0.0)
                law = residual if float(residual.sum()) > 0 else law
            cumulative = law.double().cumsum(-1)
            u = uniforms(seeds[b : b + 1], here[place : place + 1], _TARGET)
            last = torch.searchsorted(cumulative, u * cumulative[-1:], right=True)[0].clamp(max=law.shape[0] - 1)
        packed[b, 0], packed[b, 1] = place, valid[b, place]
        packed[b, 2 : 2 + place] = drafts[b, :place]
        packed[b, 2 + place] = last
    return packed
