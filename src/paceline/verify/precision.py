"""How far rounding may carry the numbers of a dtype, and so what is no fault.

float32 is held to exactness: sums in another order move a logit by about 1e-5. Half precisions move logits by
several hundredths, and with them the law itself; there the law is compared with float32's, and only a deviation
beyond what rounding explains is a failure. FP8 products quantise activations that bfloat16 rounded: a value at the
edge of two E4M3 codes falls to either, a sixteenth apart, so the batch's shape moves a logit some five times as far
(margins at which greedy texts parted on an H200, default target: median 0.04 in bfloat16, 0.24 in FP8).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Precision:
    """
    probability  relative error of a probability
    variation    TV of a law that rounding may cause
    logit        difference of two logits below which their order is rounding's
    texts        share of seeded texts that may change with the batch: its shape orders the sums; 1: nothing is tested
    """

    probability: float
    variation: float
    logit: float
    texts: float


PRECISIONS = {
    "float32": Precision(probability=2e-4, variation=0.0, logit=1e-3, texts=0.0),
    "float16": Precision(probability=0.02, variation=0.01, logit=0.06, texts=0.2),
    "bfloat16": Precision(probability=0.1, variation=0.05, logit=0.5, texts=0.4),
    "fp8": Precision(probability=0.4, variation=0.12, logit=1.5, texts=1.0),
}
