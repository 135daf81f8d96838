"""Counters, not streams: the published vectors of Philox, and independence of shape and neighbours."""

from __future__ import annotations

import torch

from paceline.layers.random import Purpose, as_int64, philox, uniforms


def words(*values: int) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor([value]) for value in values)


def test_known_vectors() -> None:
    """Random123's kat_vectors for philox4x32-10."""
    ones = 0xFFFFFFFF
    cases = [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ones,) * 4, (ones,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ]
    for counter, key, expected in cases:
        got = philox(words(*counter), words(*key))  # type: ignore[arg-type]
        assert tuple(int(word) for word in got) == expected


def test_a_number_depends_on_seed_position_and_purpose_alone() -> None:
    seeds = torch.tensor([3, as_int64(2**64 - 5), 7])[:, None]
    grid = uniforms(seeds, torch.arange(50), Purpose.ACCEPT)
    alone = uniforms(torch.tensor(as_int64(2**64 - 5)), torch.tensor(31), Purpose.ACCEPT)
    assert grid[1, 31] == alone
    assert uniforms(seeds, torch.arange(50), Purpose.DRAFT).ne(grid).all()
    assert len(set(grid.flatten().tolist())) == grid.numel()


def test_uniform_and_below_one() -> None:
    u = uniforms(torch.arange(300)[:, None], torch.arange(300), Purpose.TARGET).flatten()
    assert u.dtype == torch.float64
    assert u.min() >= 0
    assert u.max() < 1
    counts = torch.histc(u, bins=100, min=0, max=1)
    chi_square = ((counts - 900) ** 2 / 900).sum().item()
    assert chi_square < 160  # 99 degrees of freedom: P(> 160) is about 1e-4, and the seeds are fixed
