"""FP8 products and the small kernels between them, in captured graphs, against the ceiling of the card and cuBLASLt.

Prints the ceiling first and writes results/kernels-products.json last. Weights are rotated past the L2: several layers'
worth, each read once a round. The part 'all layers' is what counts: the products of a whole model with norms,
quantisation and activation between them (no attention), replayed as one graph; kernels overlap there. Figures are
milliseconds or microseconds, the median of replays.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from common import record

from paceline.kernels.activation import silu_mul_quant
from paceline.kernels.fp8 import FP8, QuantizedRows, quantize_rows
from paceline.kernels.fp8_linear import fp8_linear, fp8_product
from paceline.kernels.norm_quant import add_rms_norm_quant
from paceline.kernels.product import Product

# hidden, intermediate, outputs of qkv, layers measured (distinct weights), layers of the model
SHAPES = {"llama-3.1-70b": (8192, 28672, 10240, 8, 80), "llama-3.2-1b": (2048, 8192, 3072, 16, 16)}
LAYER_ROWS = (1, 8, 16, 32, 48, 64, 128, 256, 512)
PRODUCT_ROWS = (8, 64, 256, 2048)
Multiply = Callable[[QuantizedRows, torch.Tensor, torch.Tensor], torch.Tensor | Product]


def seconds(body: Callable[[int], object], calls: int, replays: int = 9) -> float:
    """A call's time inside a graph of `calls` calls."""
    body(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            body(i)
    graph.replay()
    taken = []
    for _ in range(replays):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        taken.append(start.elapsed_time(end) / 1e3 / calls)
    return statistics.median(taken)


def random_fp8(*shape: int) -> torch.Tensor:
    bits = torch.randint(0, 256, shape, dtype=torch.uint8, device="cuda")
    return (bits & 0xBF).view(FP8)  # without the top bit of the exponent: finite


def cublas(x: QuantizedRows, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """One scale a tensor: the fastest call, without the scales that the others apply."""
    one = scale[:1].squeeze()
    return torch._scaled_mm(x.data, weight.T, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True)


def cublas_row_wise(x: QuantizedRows, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return torch._scaled_mm(
        x.data, weight.T, scale_a=x.scale.unsqueeze(1), scale_b=scale.unsqueeze(0), out_dtype=torch.bfloat16,
        use_fast_accum=True,
    )  # fmt: skip


class Layers:
    """The products of several layers and what lies between them."""

    def __init__(self, shape: str, rows: int) -> None:
        self.hidden, inner, qkv, self.count, self.total = SHAPES[shape]
        sizes = ((qkv, self.hidden), (self.hidden, self.hidden), (2 * inner, self.hidden), (self.hidden, inner))
        self.weights = [[random_fp8(*size) for size in sizes] for _ in range(self.count)]
        self.scales = [torch.full((size[0],), 1e-3, device="cuda") for size in sizes]
        self.norm = torch.ones(self.hidden, dtype=torch.bfloat16, device="cuda")
        self.set_rows(rows)

    def set_rows(self, rows: int) -> None:
        self.residual = torch.randn(rows, self.hidden, device="cuda").bfloat16()
        self.delta = torch.zeros_like(self.residual)

    @property
    def num_bytes(self) -> int:
        return sum(weight.numel() for layer in self.weights for weight in layer)

    def run(self, multiply: Multiply, settled: Multiply) -> None:
        """`settled` for qkv, which attention reads: no scale may be owed."""
        delta: torch.Tensor | Product = self.delta
        for qkv, o, gate_up, down in self.weights:
            x, _ = add_rms_norm_quant(delta, self.residual, self.norm, 1e-5)
            attended = quantize_rows(settled(x, qkv, self.scales[0])[:, : self.hidden])
            x, _ = add_rms_norm_quant(multiply(attended, o, self.scales[1]), self.residual, self.norm, 1e-5)
            delta = multiply(silu_mul_quant(multiply(x, gate_up, self.scales[2])), down, self.scales[3])

    def model_ms(self, multiply: Multiply, settled: Multiply) -> float:
        return seconds(lambda _: self.run(multiply, settled), 1) / self.count * self.total * 1e3

    def product_us(self, which: int, rows: int, multiply: Multiply) -> float:
        inputs = self.weights[0][which].shape[1]
        x = QuantizedRows(random_fp8(rows, inputs), torch.rand(rows, device="cuda"))
        scale = self.scales[which]
        return seconds(lambda i: multiply(x, self.weights[i % self.count][which], scale), 2 * self.count, 5) * 1e6


def read_ceiling() -> float:
    """Bytes a second of one pass over 4 GiB."""
    block = torch.randint(0, 100, (1 << 30,), dtype=torch.int32, device="cuda")
    return block.numel() * 4 / seconds(lambda _: block.max(), 1)


def measure(deadline: float) -> dict[str, Any]:
    ceiling = read_ceiling()
    print(f"{torch.cuda.get_device_name()}: reads {ceiling / 1e12:.2f} TB/s")
    results: dict[str, Any] = {"read_bytes_per_s": ceiling, "layers": [], "products": []}
    for shape in SHAPES:
        layers = Layers(shape, 1)
        least = layers.num_bytes / layers.count * layers.total / ceiling * 1e3
        print(f"\n{shape}: all layers, ceiling {least:.3f} ms\n rows  paceline    cuBLASLt  row-wise   of the ceiling")
        for rows in LAYER_ROWS:
            layers.set_rows(rows)
            row = {
                "shape": shape,
                "rows": rows,
                "ceiling_ms": least,
                "paceline_ms": layers.model_ms(fp8_product, fp8_linear),
                "cublas_ms": layers.model_ms(cublas, cublas),
                "cublas_row_wise_ms": layers.model_ms(cublas_row_wise, cublas_row_wise),
            }
            results["layers"].append(row)
            print(
                f"{rows:5d} {row['paceline_ms']:9.3f} {row['cublas_ms']:11.3f} {row['cublas_row_wise_ms']:9.3f}"
                f" {least / row['paceline_ms']:13.0%}", flush=True,
            )  # fmt: skip
        print("\nproduct, alone     rows   paceline us  TB/s  TFLOP/s   cuBLASLt us")
        for which, name in enumerate(("qkv", "o", "gate_up", "down")):
            for rows in PRODUCT_ROWS:
                if time.monotonic() > deadline:
                    return results
                us = layers.product_us(which, rows, fp8_product)
                other = layers.product_us(which, rows, cublas)
                size = layers.weights[0][which].numel()
                results["products"].append(
                    {"shape": shape, "product": name, "rows": rows, "paceline_us": us, "cublas_us": other,
                     "weight_bytes": size}
                )  # fmt: skip
                print(
                    f"{shape:14s} {name:8s} {rows:5d} {us:9.1f} {size / us / 1e6:9.2f}"
                    f" {2 * size * rows / us / 1e6:8.0f} {other:11.1f}", flush=True,
                )  # fmt: skip
        del layers
        torch.cuda.empty_cache()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=300.0, help="stop starting measurements after this long")
    arguments = parser.parse_args()
    results = measure(time.monotonic() + arguments.seconds)
    print(json.dumps({"out": str(record("kernels-products", {"gpu": torch.cuda.get_device_name(), **results}))}))


if __name__ == "__main__":
    main()
