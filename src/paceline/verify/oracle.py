"""The oracle: raw logits of the target, from somewhere else than the engine under test.

`TransformersOracle` reads the same directory with transformers and its own attention, cache and arithmetic in
float32. `EngineOracle` asks Paceline without speculation for the log-probabilities of the whole vocabulary: for a
target of which a second copy does not fit. Log-probabilities are logits less a constant, which only
repetition_penalty can tell apart; cases with it need transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from paceline.errors import PacelineError
from paceline.verify.law import Array

if TYPE_CHECKING:
    import torch

    from paceline.llm import LLM
    from paceline.outputs import Logprob

Tokens = tuple[int, ...]
_BATCH_POSITIONS = 1024  # of one forward pass of transformers


class Oracle(Protocol):
    name: str
    absolute: bool  # logits, not log-probabilities

    def logits(self, texts: Sequence[Tokens]) -> list[Array]:
        """Raw logits [V] of the token that follows each text."""
        ...


class Remembering:
    """An oracle that is asked once for each text: cases share prompts and beginnings."""

    def __init__(self, inner: Oracle) -> None:
        self.name, self.absolute = inner.name, inner.absolute
        self._inner = inner
        self._known: dict[Tokens, Array] = {}

    def logits(self, texts: Sequence[Tokens]) -> list[Array]:
        missing = sorted({text for text in texts if text not in self._known})
        if missing:
            self._known.update(zip(missing, self._inner.logits(missing), strict=True))
        return [self._known[text] for text in texts]


class TransformersOracle:
    absolute = True

    def __init__(self, path: Path, vocab_size: int, device: str = "cpu") -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self.name = "transformers, float32"
        self._vocab_size = vocab_size
        self._device = torch.device(device)
        try:
            model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        except (OSError, ValueError, RuntimeError) as error:
            raise PacelineError(
                f"transformers cannot read {path}: {error}\nUse --oracle engine: Paceline without speculation."
            ) from error
        self._model = model.eval().to(self._device)  # type: ignore[no-untyped-call]

    def logits(self, texts: Sequence[Tokens]) -> list[Array]:
        """Texts that begin with one another cost one pass: causal attention gives every position's logits."""
        found: dict[Tokens, Array] = {}
        for batch in _batches(_longest(texts)):
            rows = self._forward(batch)
            for text, hidden in zip(batch, rows, strict=True):
                wanted = [other for other in texts if other not in found and text[: len(other)] == other]
                found.update(self._project(wanted, hidden))
        return [found[text] for text in texts]

    def _forward(self, texts: Sequence[Tokens]) -> torch.Tensor:
        """Last hidden states [N, L, H]; padding stands behind the text, where causal attention never looks."""
        import torch

        width = max(map(len, texts))
        ids = torch.tensor([[*text, *[0] * (width - len(text))] for text in texts], device=self._device)
        with torch.inference_mode():
            hidden: torch.Tensor = self._model.base_model(ids, use_cache=False).last_hidden_state
        return hidden

    def _project(self, texts: Sequence[Tokens], hidden: torch.Tensor) -> dict[Tokens, Array]:
        import torch

        if not texts:
            return {}
        with torch.inference_mode():
            rows = self._model.lm_head(hidden[[len(text) - 1 for text in texts]])[:, : self._vocab_size]
        return dict(zip(texts, rows.to(torch.float64).cpu().numpy(), strict=True))


def _longest(texts: Iterable[Tokens]) -> list[Tokens]:
    """Texts that no other one begins with."""
    ordered = sorted(set(texts))
    return [
        text
        for index, text in enumerate(ordered)
        if index + 1 == len(ordered) or ordered[index + 1][: len(text)] != text
    ]


def _batches(texts: Sequence[Tokens]) -> Iterable[list[Tokens]]:
    """Texts of about equal length, at most so many positions together."""
    batch: list[Tokens] = []
    for text in sorted(texts, key=len):
        if batch and (len(batch) + 1) * len(text) > _BATCH_POSITIONS:
            yield batch
            batch = []
        batch.append(text)
    if batch:
        yield batch


class EngineOracle:
    """`open_plain` makes an LLM without speculation, with max_logprobs=-1; it is open only while it is asked."""

    name = "Paceline without speculation"
    absolute = False

    def __init__(self, open_plain: Callable[[], AbstractContextManager[LLM]], vocab_size: int) -> None:
        self._open_plain = open_plain
        self._vocab_size = vocab_size

    def logits(self, texts: Sequence[Tokens]) -> list[Array]:
        from paceline.sampling_params import SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=-1, detokenize=False)
        with self._open_plain() as llm:
            outputs = llm.generate([{"prompt_token_ids": list(text)} for text in texts], params, use_tqdm=False)
        return [self._row(output.outputs[0].logprobs) for output in outputs]

    def _row(self, logprobs: list[dict[int, Logprob]] | None) -> Array:
        assert logprobs, "logprobs were asked for"
        row = np.full(self._vocab_size, -np.inf)
        for token, entry in logprobs[0].items():
            row[token] = entry.logprob
        return row
