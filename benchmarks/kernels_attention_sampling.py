"""Attention, rotary + KV write, sampling and acceptance kernels on a GPU: right, and how near to the card's limits.

Every time is the median of CUDA graph replays; a graph walks over as many copies of its inputs as it takes to leave
the L2 behind, so the bytes come from memory as they do between two layers of a model. Prints the card's read rate
first, one table after it, and writes one JSON document.

    python benchmarks/kernels_attention_sampling.py [--output benchmarks/results/kernels-attention-sampling.json]
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch
from common import RESULTS, commit
from torch import Tensor

from paceline.kernels import acceptance, paged_attention, prefill_attention, rotary_kv, sampling
from paceline.kernels.attention_reference import attention_reference
from paceline.kernels.philox import uniforms, uniforms_reference

BLOCK_SIZE, VOCAB = 16, 128256
LEAVE_L2 = 256 << 20  # bytes that a graph walks over
GPU = torch.device("cuda")


class Shape(NamedTuple):
    name: str
    heads: int
    kv_heads: int
    head_dim: int


LARGE, SMALL = Shape("70B", 64, 8, 128), Shape("1B", 32, 8, 64)


def replay_us(calls: list[Callable[[], Any]], replays: int = 20) -> float:
    """Microseconds of one call: all of them captured in one graph, replayed."""
    calls[0]()  # compile
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    for _ in range(6):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / replays / len(calls))
    return statistics.median(times[1:])


def read_ceiling() -> float:
    """TB/s of a plain read: torch's sum over 4 GiB."""
    data = torch.ones(1 << 30, dtype=torch.float32, device=GPU)
    return data.nbytes / replay_us([lambda: torch.max(data)], 5) / 1e6


class Rows(NamedTuple):
    q: Tensor
    layer: Tensor
    tables: Tensor
    kv_lens: Tensor


def rows_of(shape: Shape, rows: int, query_len: int, kv_len: int, dtype: torch.dtype, kv_dtype: torch.dtype) -> Rows:
    """Random rows of one length whose blocks lie in random order."""
    width = -(-kv_len // BLOCK_SIZE)
    layer = torch.randn((rows * width + 1, BLOCK_SIZE, 2, shape.kv_heads, shape.head_dim), device=GPU, dtype=dtype)
    tables = (torch.randperm(rows * width, device=GPU) + 1).int().view(rows, width)
    fused = torch.randn((rows * query_len, shape.heads + 2 * shape.kv_heads, shape.head_dim), device=GPU, dtype=dtype)
    kv_lens = torch.full((rows,), kv_len, dtype=torch.int32, device=GPU)
    return Rows(fused[:, : shape.heads], layer.to(kv_dtype), tables, kv_lens)


def decode(shape: Shape, rows: int, query_len: int, kv_len: int, kv_dtype: torch.dtype, **options: Any) -> dict:
    bytes_read = rows * kv_len * 2 * shape.kv_heads * shape.head_dim * kv_dtype.itemsize
    copies = min(64, max(2, LEAVE_L2 // bytes_read))
    many = [rows_of(shape, rows, query_len, kv_len, torch.bfloat16, kv_dtype) for _ in range(copies)]
    many = [at._replace(tables=many[0].tables, kv_lens=many[0].kv_lens) for at in many]  # layers share them
    us = replay_us([
        lambda at=at: paged_attention.paged_attention(at.q, at.layer, at.tables, at.kv_lens, query_len, **options)
        for at in many
    ])  # fmt: skip
    return {"kernel": "paged_attention", "shape": shape.name, "kv": str(kv_dtype)[6:], "rows": rows,
            "query_len": query_len, "kv_len": kv_len, "us": us, "TB/s": bytes_read / us / 1e6, **options}  # fmt: skip


def prefill(shape: Shape, rows: int, length: int, kv_dtype: torch.dtype) -> dict:
    at = rows_of(shape, rows, length, length, torch.bfloat16, kv_dtype)
    starts = torch.arange(0, rows * length + 1, length, dtype=torch.int32, device=GPU)
    us = replay_us(
        [lambda: prefill_attention.prefill_attention(at.q, at.layer, at.tables, starts, at.kv_lens, length)], 4
    )
    operations = rows * shape.heads * 4 * shape.head_dim * length * (length + 1) // 2
    return {"kernel": "prefill_attention", "shape": shape.name, "kv": str(kv_dtype)[6:], "rows": rows,
            "query_len": length, "us": us, "TFLOP/s": operations / us / 1e6}  # fmt: skip


def prefill_of_torch(shape: Shape, rows: int, length: int) -> dict:
    """torch's own attention on keys that lie side by side: what the paged kernel may be measured against."""
    q = torch.randn((rows, shape.heads, length, shape.head_dim), device=GPU, dtype=torch.bfloat16)
    k, v = (torch.randn((rows, shape.kv_heads, length, shape.head_dim), device=GPU, dtype=q.dtype) for _ in "kv")
    us = replay_us(
        [lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)], 4
    )
    operations = rows * shape.heads * 4 * shape.head_dim * length * (length + 1) // 2
    return {"kernel": "torch SDPA", "shape": shape.name, "rows": rows, "query_len": length, "us": us,
            "TFLOP/s": operations / us / 1e6}  # fmt: skip


def rotary(shape: Shape, tokens: int, kv_dtype: torch.dtype) -> dict:
    heads = shape.heads + 2 * shape.kv_heads
    table = torch.randn((4096, 2, shape.head_dim), device=GPU)
    positions = torch.arange(tokens, device=GPU) % 4096
    slots = torch.randperm(tokens, device=GPU) + BLOCK_SIZE
    copies = max(1, min(32, LEAVE_L2 // (tokens * heads * shape.head_dim * 2)))
    blocks = -(-tokens // BLOCK_SIZE) + 1
    many = [
        (torch.randn((tokens, heads * shape.head_dim), device=GPU, dtype=torch.bfloat16),
         torch.zeros((blocks, BLOCK_SIZE, 2, shape.kv_heads, shape.head_dim), device=GPU).to(kv_dtype))
        for _ in range(copies)
    ]  # fmt: skip
    us = replay_us([
        lambda qkv=qkv, layer=layer: rotary_kv.rotary_kv_write_(
            qkv, table, positions, slots, layer, shape.heads, shape.kv_heads
        )
        for qkv, layer in many
    ])  # fmt: skip
    moved = (
        tokens * shape.head_dim * (2 * heads + 2 * shape.heads + 2 * shape.kv_heads * kv_dtype.itemsize + 8)
    )  # read once, queries and cache written, cos and sin read
    return {"kernel": "rotary_kv_write_", "shape": shape.name, "kv": str(kv_dtype)[6:], "tokens": tokens, "us": us,
            "TB/s": moved / us / 1e6}  # fmt: skip


class Parameters(NamedTuple):
    temperature: Tensor
    min_p: Tensor
    top_k: Tensor
    top_p: Tensor


def parameters(rows: int, temperature: float, min_p: float = 0.0, top_k: int = 0, top_p: float = 1.0) -> Parameters:
    return Parameters(
        torch.full((rows,), temperature, device=GPU), torch.full((rows,), min_p, device=GPU),
        torch.full((rows,), top_k, dtype=torch.int32, device=GPU), torch.full((rows,), top_p, device=GPU),
    )  # fmt: skip


def model_logits(rows: int) -> Tensor:
    """float32 that came from bfloat16, as a head in bfloat16 gives them: thousands of ties, a peak, a long tail."""
    return (torch.randn((rows, VOCAB), device=GPU) * 2.5).to(torch.bfloat16).float()


KINDS = {
    "greedy": {"temperature": 0.0},
    "random": {"temperature": 1.0},
    "top_p": {"temperature": 1.0, "top_p": 0.95},
    "top_k+top_p": {"temperature": 0.7, "top_k": 50, "top_p": 0.9},
}


def law_and_draw(rows: int, kind: str) -> dict:
    logits, columns = model_logits(rows), parameters(rows, **KINDS[kind])
    seeds, positions = torch.arange(rows, device=GPU), torch.arange(rows, device=GPU)

    def call() -> Tensor:
        law = sampling.processed_law(logits, *columns)
        return sampling.draw_seeded(law, columns.temperature, seeds, positions, 0)

    return {"kernel": "processed_law + draw", "rows": rows, "kind": kind, "us": replay_us([call] * 4, 5)}


class Decision(NamedTuple):
    drafts: Tensor
    num_drafted: Tensor
    argmax: Tensor
    valid: Tensor
    temperature: Tensor
    seeds: Tensor
    positions: Tensor
    probs: Tensor
    draft_probs: Tensor


def decision(rows: int, k: int, temperature: float) -> Decision:
    p = torch.randn((rows, k + 1, VOCAB), device=GPU).mul_(2.5).softmax(-1)
    q = p[:, :k].roll(1, 0) * 0.3 + p[:, :k] * 0.7
    drafts = torch.stack([torch.multinomial(q[row], 1)[:, 0] for row in range(rows)])
    argmax = p.argmax(-1)
    if temperature == 0:
        drafts = torch.where(torch.rand(drafts.shape, device=GPU) < 0.8, argmax[:, :k], drafts)
    return Decision(
        drafts, torch.full((rows,), k, dtype=torch.int32, device=GPU), argmax,
        torch.ones((rows, k + 1), dtype=torch.bool, device=GPU), torch.full((rows,), temperature, device=GPU),
        torch.arange(rows, device=GPU) * 7919, torch.arange(rows, device=GPU), p, q,
    )  # fmt: skip


def decide(case: Decision) -> Tensor:
    return acceptance.accept(*case[:7], probs=case.probs, draft_probs=case.draft_probs)


def accepting(rows: int, k: int, temperature: float) -> dict:
    case = decision(rows, k, temperature)
    return {"kernel": "accept", "rows": rows, "k": k, "kind": "random" if temperature else "greedy",
            "us": replay_us([lambda: decide(case)] * 4, 5)}  # fmt: skip


CHECKED = (LARGE, SMALL, Shape("odd", 14, 2, 64), Shape("96", 12, 12, 96))


def check(shapes: tuple[Shape, ...] = CHECKED) -> list[dict]:
    """Every kernel against its reference on this card; relative errors ‖a - b‖ / ‖b‖, or whether bits agree."""
    torch.manual_seed(0)
    found: list[dict] = []

    def near(name: str, a: Tensor, b: Tensor, limit: float) -> None:
        error = float((a.double() - b.double()).norm() / b.double().norm())
        found.append({"check": name, "error": error, "ok": error < limit})

    def same(name: str, a: Tensor, b: Tensor) -> None:
        found.append({"check": name, "differ": int((a != b).sum()), "ok": torch.equal(a, b)})

    bf16, fp8 = torch.bfloat16, torch.float8_e4m3fn
    for shape in shapes:
        for dtype, kv_dtype, limit in ((bf16, bf16, 6e-3), (bf16, fp8, 6e-3), (torch.float32, torch.float32, 2e-6)):
            for query_len, kv_len, window in ((1, 300, None), (6, 777, None), (4, 515, 100)):
                at = rows_of(shape, 3, query_len, kv_len, dtype, kv_dtype)
                at.kv_lens[1] = query_len
                starts = list(range(0, 3 * query_len + 1, query_len))
                expected = attention_reference(
                    at.q, at.layer, at.tables, starts, at.kv_lens.tolist(), window, 0.5, 2.0, shape.head_dim**-0.5
                ).flatten(1)
                name = f"decode {shape.name} {dtype} {kv_dtype} Q={query_len} window={window}"
                both = {"k_scale": 0.5, "v_scale": 2.0}
                out = paged_attention.paged_attention(*at, query_len, window, **both)
                near(name, out, expected, limit)
                data, scale = paged_attention.paged_attention(*at, query_len, window, **both, quantize=True)
                near(f"{name} quantised", data.float() * scale[:, None], expected, 4e-2)
                ragged = prefill_attention.prefill_attention(
                    *at[:3], torch.tensor(starts, dtype=torch.int32, device=GPU), at.kv_lens, query_len, window, **both
                )
                near(f"ragged {name}", ragged, expected, limit)
            at = rows_of(shape, 3, 400, 900, dtype, kv_dtype)
            starts = [0, 1, 300, 700]
            at = at._replace(q=at.q[:700])
            expected = attention_reference(
                at.q, at.layer, at.tables, starts, at.kv_lens.tolist(), None, 1.0, 1.0, shape.head_dim**-0.5
            ).flatten(1)
            out = prefill_attention.prefill_attention(
                *at[:3], torch.tensor(starts, dtype=torch.int32, device=GPU), at.kv_lens, 400
            )
            near(f"prefill {shape.name} {dtype} {kv_dtype}", out, expected, limit)
            norms = torch.rand((2, shape.head_dim), device=GPU, dtype=dtype)
            heads = shape.heads + 2 * shape.kv_heads
            qkv = torch.randn((9, heads * shape.head_dim), device=GPU, dtype=dtype)
            table = torch.randn((50, 2, shape.head_dim), device=GPU)
            where = (torch.tensor([3, 0, 7, -1, 9, 10, 11, 12, 13], device=GPU), torch.arange(9, device=GPU) + 14)
            pools = [at.layer.clone(), at.layer.clone()]
            sides = [qkv.clone(), qkv.clone()]
            for side, pool, op in zip(
                sides, pools, (rotary_kv.rotary_kv_write_, rotary_kv.rotary_kv_write_reference_), strict=True
            ):
                op(side, table, *where, pool, shape.heads, shape.kv_heads, q_norm=norms[0], k_norm=norms[1])
            near(f"rotary q {shape.name} {dtype}", sides[0], sides[1], limit)
            near(f"rotary kv {shape.name} {kv_dtype}", pools[0].float(), pools[1].float(), limit)
    for kind, values in KINDS.items():
        for logits in (model_logits(5), model_logits(5).bfloat16(), torch.randn((5, VOCAB), device=GPU) * 3):
            columns = parameters(5, **values)
            law = sampling.processed_law(logits, *columns)
            reference = sampling._law_reference(logits, *columns, torch.zeros((5, VOCAB), device=GPU))
            name = f"law {kind} {logits.dtype}"
            same(f"{name} argmax", law.argmax, reference.argmax)
            if values["temperature"]:
                near(name, law.probs, reference.probs, 1e-4)
                if values.get("top_p", 1.0) == 1.0:
                    same(f"{name} tokens", law.probs > 0, reference.probs > 0)
                else:  # the smallest set: a sum over so many in float32 may fall on either side of the edge
                    found.append(nucleus_check(name, logits, columns, law.probs))
                u = torch.rand(5, dtype=torch.float64, device=GPU)
                same(
                    f"{name} draw",
                    sampling.draw(law, columns.temperature, u),
                    sampling._draw_reference(law, columns.temperature, u),
                )
    for temperature in (0.0, 1.0):
        case = decision(16, 5, temperature)
        reference = acceptance._accept_reference(*case, None)
        same(f"accept temperature={temperature}", decide(case), reference)
    seeds = torch.randint(-(2**62), 2**62, (1000,), device=GPU)
    same("uniforms", uniforms(seeds, seeds.abs(), 1), uniforms_reference(seeds, seeds.abs(), 1))
    return found


def nucleus_check(name: str, logits: Tensor, columns: Parameters, probs: Tensor) -> dict:
    """Is the set kept the smallest with top_p of the mass (in float64, to 1e-6), ties in and the rest out?"""
    whole = (logits.double() / columns.temperature[:, None].double()).softmax(-1)
    if int(columns.top_k[0]):
        edge = whole.topk(int(columns.top_k[0])).values[:, -1:]
        whole = torch.where(whole >= edge, whole, 0.0)
        whole /= whole.sum(-1, keepdim=True)
    kept = probs > 0
    least = torch.where(kept, whole, 2.0).amin(-1, keepdim=True)
    mass, without_last = (whole * kept).sum(-1), (whole * (whole > least)).sum(-1)
    ok = (mass >= columns.top_p - 1e-6) & (without_last < columns.top_p + 1e-6) & (kept == (whole >= least)).all(-1)
    return {"check": f"{name} tokens", "ok": bool(ok.all())}


def measure() -> list[dict]:
    bf16, fp8 = torch.bfloat16, torch.float8_e4m3fn
    found = []
    for shape in (LARGE, SMALL):
        for rows in (1, 8, 32, 64, 128):
            for kv_len in (256, 2048):
                for query_len in (1, 4, 6):
                    found.append(decode(shape, rows, query_len, kv_len, bf16, quantize=True))
                found.append(decode(shape, rows, 6, kv_len, fp8, quantize=True))
        for kv_dtype in (bf16, fp8):
            found.append(prefill(shape, 8, 2048, kv_dtype))
        found.append(prefill_of_torch(shape, 8, 2048))
        for tokens in (1, 6, 128, 768, 16384):
            found.append(rotary(shape, tokens, bf16))
    for rows in (1, 6, 32, 128):
        for kind in KINDS:
            found.append(law_and_draw(rows, kind))
    for rows in (1, 32, 128):
        for temperature in (0.0, 1.0):
            found.append(accepting(rows, 5, temperature))
    return found


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--output", type=Path, default=RESULTS / "kernels-attention-sampling.json")
    output = arguments.parse_args().output
    checks = check()
    failed = [entry for entry in checks if not entry["ok"]]
    print(f"{len(checks)} checks, {len(failed)} failed", *failed, sep="\n", flush=True)
    ceiling = read_ceiling()
    print(f"read ceiling: {ceiling:.2f} TB/s", flush=True)
    measured = measure()
    for entry in measured:
        print(
            "  ".join(f"{key}={value:.3g}" if isinstance(value, float) else f"{value}" for key, value in entry.items())
        )
    document = {
        "command": " ".join(["python", *sys.argv]),
        "commit": commit() if shutil.which("git") else "unknown",
        "date": datetime.now(UTC).date().isoformat(),
        "hardware": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "read_ceiling_TB/s": ceiling,
        "checks": checks,
        "measured": measured,
    }
    output.write_text(json.dumps(document, indent=1))
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
