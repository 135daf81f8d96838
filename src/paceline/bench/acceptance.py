"""Synthetic acceptance: from the figure that a user states to the rates that the engine takes.

A pass with K drafts, each kept with probability a if those before it were, emits 1 + a + a² + … + a^K tokens on
average: the accepted drafts and one more.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import ConfigurationError


def expected_tokens(rate: float, k: int) -> float:
    """Tokens emitted per pass."""
    return sum(rate**i for i in range(k + 1))


def rate_for_length(length: float, k: int) -> float:
    """The conditional rate at which K drafts emit `length` tokens a pass; 1 where even all of them are too few."""
    if length >= k + 1:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if expected_tokens(middle, k) < length else (low, middle)
    return (low + high) / 2


@dataclass(frozen=True, slots=True)
class SyntheticAcceptance:
    """Either a conditional `rate` at every place, or a `length`: tokens emitted a pass, whatever K is."""

    rate: float | None = None
    length: float | None = None

    def __post_init__(self) -> None:
        if (self.rate is None) == (self.length is None):
            raise ConfigurationError("Give either --synthetic-acceptance or --synthetic-acceptance-length, not both.")
        if self.rate is not None and not 0.0 <= self.rate <= 1.0:
            raise ConfigurationError(
                f"--synthetic-acceptance {self.rate} is not a probability: give P(a draft is kept | those before it "
                "were), between 0 and 1. For tokens a pass, use --synthetic-acceptance-length."
            )
        if self.length is not None and self.length < 1.0:
            raise ConfigurationError(
                f"--synthetic-acceptance-length {self.length} is too small: every pass emits at least 1 token."
            )

    @property
    def depends_on_k(self) -> bool:
        return self.length is not None

    def conditional_rate(self, k: int) -> float:
        if self.rate is not None:
            return self.rate
        assert self.length is not None
        return rate_for_length(self.length, k)

    def cumulative_rates(self, k: int) -> list[float]:
        """P(the first i drafts are all kept), i = 1 .. K: what `speculative_config` takes."""
        rate = self.conditional_rate(k)
        return [rate**i for i in range(1, k + 1)]

    def note(self, k: int) -> str | None:
        """What a reader must know about this K."""
        if self.length is None or self.length <= k + 1:
            return None
        return f"K={k} emits at most {k + 1} tokens a pass: {self.length} is out of reach, and all drafts are kept."
