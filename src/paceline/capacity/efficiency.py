"""How much of a card's peak rates the kernels reach: eleven numbers, each with its origin.

Measured on one H200 with Paceline's kernels one by one (docs/performance.md, benchmarks/results/kernels-*.json), never
fitted to a run of the engine. On any other card, and under tensor parallelism, they are taken over as they are: an
assumption, which calibration with a measurement of that card replaces.
"""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    read: float = 0.92
    compute: float = 0.63
    product_start: float = 1.5e-6
    small_kernel_start: float = 1.2e-6
    program_bandwidth: float = 42e9
    attention: float = 1.0
    attention_start: float = 6.0e-6
    sampling: float = 1.0
    step_gap: float = 20e-6
    all_reduce_start: float = 6.0e-6
    link: float = 0.8

    def as_dict(self) -> dict[str, float]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


ORIGINS: dict[str, str] = {
    "read": "share of the peak bandwidth that one pass over 4 GiB reads: 4.39 to 4.53 of 4.8 TB/s on an H200",
    "compute": "share of the dense FP8 peak of large products: 1,190 to 1,300 of 1,979 TFLOP/s on an H200",
    "product_start": "seconds that a product waits for the one before it: (17.04 - 15.61 - 0.90) ms over 320 products "
    "of the 70B shape, and the same for the 1B (1.4 µs)",
    "small_kernel_start": "seconds of a norm, quantisation or activation beside its row's bytes, with dependent launch",
    "program_bandwidth": "bytes a second of one program, which is what a row of a norm has: 0.90 ms for the small "
    "kernels of 80 layers of the 70B, 0.10 ms for 16 of the 1B",
    "attention": "factor on attention's time over cache, 1 where kernels are as measured one by one",
    "attention_start": "seconds of attention beside its bytes: 6.2 to 7.4 µs at one row and 256 keys",
    "sampling": "factor on the time of the law and the draw, 1 as measured: 4.4 µs at one row, 25 µs at 128",
    "step_gap": "seconds between two captured steps when the host runs ahead: assumed",
    "all_reduce_start": "seconds of a sum over two ranks in a captured graph, once for every doubling of ranks: about "
    "6 µs for two H100 up to 64 KiB (https://github.com/NVIDIA/nccl/issues/1259); the growth is assumed",
    "link": "share of the link that large sums reach: 370 of 450 GB/s (https://github.com/NVIDIA/nccl/issues/1455)",
}

# What is not worth a name of its own: see roofline.py where each is used.
CONSTANTS: dict[str, float] = {
    "roofline_exponent": 2.5,  # reading and multiplying overlap in part: (r^p + c^p)^(1/p); between sum and maximum
    "attention_wave": 2.2e-6,  # seconds of a wave of attention programs before its first keys are there
    "attention_compute": 0.6,  # share of the BF16 peak
    "prefill_attention": 0.33,  # share of the BF16 peak: 323 of 989 TFLOP/s, 8 x 2,048 tokens
    "torch_kernel": 1.5e-6,  # seconds of a tiny kernel in a graph
    "launch": 5e-6,  # seconds of the host for one launch outside of a graph: assumed
}
