"""ModelRunner: one model on one rank. Load, size, forward.

Contract
- `forward(batch)` stores the keys and values of the batch's tokens and returns the logits that were asked for. Any
  mix of prefill chunks, single tokens and K+1 verification rows is one arithmetic.
- A token whose slot lies in the null block is computed and not kept: its row holds the entry already.
- `finite[r]` is False if any token of row r left the last layer with a NaN or an infinity. It costs one reduction and
  stays on the device.
- The runner knows nothing of sequences, sampling or speculation, and synchronises with the host nowhere.
- On a GPU the forward is the fused one (models/fused.py); `forward_paged` is what captured steps call, with every
  index on the device. On a CPU it is the one in C++ (models/native.py), where there is a compiler; else llama.py's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from paceline.config import ModelConfig
from paceline.distributed.group import ALONE, Group
from paceline.kernels.cpu_pool import zero_slots
from paceline.layers.linear import has_fp8_products, product_sizes
from paceline.layers.sampling import Peaks
from paceline.layers.threads import is_small, mean_weight, one_thread
from paceline.models import fused
from paceline.models.architecture import Architecture, read_architecture
from paceline.models.draft_head import frequent_tokens, read_counts, read_map
from paceline.models.fused import PagedBatch
from paceline.models.llama import LlamaModel
from paceline.models.loader import FP8, fill_dummy, load_weights
from paceline.models.native import NativeForward, native_forward
from paceline.models.quantization import LinearFormats, choose_formats
from paceline.runner.attention_plan import plan_attention
from paceline.runner.forward_batch import ForwardBatch
from paceline.runner.kv_pool import KVPool, bytes_per_block


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardOutput:
    logits: Tensor  # [L, V] float32, of batch.logits_indices
    finite: Tensor  # [R] bool
    peaks: Peaks | None = None  # [L], where the forward has looked for them

    def cut(self, vocab_size: int) -> ForwardOutput:
        """Without the logits of a model's padding, which no token has."""
        if vocab_size == self.logits.shape[1]:
            return self
        return ForwardOutput(logits=self.logits[:, :vocab_size], finite=self.finite)


@dataclass(frozen=True, slots=True)
class DraftOutput:
    token_ids: Tensor  # [D, most] int64 of the rows that draft, padding -1
    finite: Tensor  # [R] bool, of the batch's rows
    has_finite_logits: Tensor  # [D] bool: at every draft


class ModelRunner:
    def __init__(
        self,
        model: LlamaModel,
        formats: LinearFormats,
        weight_bytes: int,
        kv_dtype: torch.dtype | None = None,
        *,
        use_fused: bool | None = None,
        native: NativeForward | None = None,
    ) -> None:
        """`use_fused`: the fused forward; None: on a GPU. (Elsewhere its kernels run as their torch references.)
        `native`: what has taken the model's weights over."""
        self.model = model
        self.native = native
        self.formats = formats
        self.weight_bytes = weight_bytes
        self.architecture: Architecture = model.arch
        self.dtype = model.embedding.dtype
        self.device = model.embedding.device
        self.kv_dtype = kv_dtype or self.dtype
        self.use_fused = self.device.type == "cuda" if use_fused is None else use_fused
        self._weights, self._bytes = mean_weight([linear for layer in model.layers for linear in layer.linears])
        self._pool: KVPool | None = None
        self._only: Sequence[int] | None = None  # layers of a trial
        self.short_queries: Collection[int] = range(1, _MAX_SHORT_QUERY + 1)
        """Lengths for which, if all rows have the same, the decode kernels run; all else goes to the ragged one. Each
        is a program of its own, so those that nobody has compiled are better left out."""

    @classmethod
    @torch.no_grad()
    def load(
        cls,
        config: ModelConfig,
        device: torch.device | str = "cpu",
        *,
        group: Group = ALONE,
        seed: int = 0,
        fp8_products: bool | None = None,
        use_native: bool = True,
    ) -> ModelRunner:
        """Read `config.path`; load_format 'dummy' needs only its config.json and fills from `seed`.

        `group`: the ranks that share the model; each reads only its own slices. `use_native`: on a CPU the forward in
        C++ where it can be had; False is its reference.
        `fp8_products` None: as the device has them. True on a CPU computes what FP8 kernels would, by their slow
        references: to measure and to test quality.
        """
        architecture = read_architecture(config.path)
        device = torch.device(device)
        dtype: torch.dtype = getattr(torch, config.dtype)
        before = _allocated_bytes(device)
        formats = choose_formats(
            architecture.quantization,
            quantize=config.quantization == "fp8",
            quantize_lm_head=config.quantize_lm_head,
            tied_embeddings=architecture.tied_embeddings,
            has_fp8_products=has_fp8_products(device) if fp8_products is None else fp8_products,
        )
        model = LlamaModel(
            architecture, dtype, device, config.max_model_len, formats, group,
            reduces_head=_reduces_head(architecture, config),
        )  # fmt: skip
        if config.load_format == "dummy":
            fill_dummy(model.checkpoint_parts(), seed, group.rank)
        else:
            load_weights(model.checkpoint_parts(), config.path, tied_embeddings=architecture.tied_embeddings)
        _reduce_head(model, config)
        kv_dtype = FP8 if config.kv_cache_dtype == "fp8" else None
        native = native_forward(model) if use_native and kv_dtype is None else None
        if native is None:
            model.pack()
        weight_bytes = model.num_bytes if device.type == "cpu" else _allocated_bytes(device) - before
        weight_bytes += native.num_bytes if native is not None else 0
        return cls(model, formats, weight_bytes, kv_dtype, native=native)

    def bytes_per_block(self, block_size: int) -> int:
        return bytes_per_block(self.architecture, self.kv_dtype, block_size)

    def allocate_kv(self, num_blocks: int, block_size: int) -> None:
        self._pool = KVPool(self.architecture, self.kv_dtype, self.device, num_blocks, block_size)

    @property
    def pool(self) -> KVPool:
        if self._pool is None:
            raise RuntimeError("allocate_kv must be called before the first forward.")
        return self._pool

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        pool = self.pool
        if self.native is not None:
            logits, finite, *peaks = self.native.forward(
                batch.token_ids, batch.positions, batch.slot_mapping, batch.block_tables, batch.query_lens,
                batch.logits_indices, pool.layers,
            )  # fmt: skip
            return ForwardOutput(logits=logits, finite=finite, peaks=Peaks(*peaks))
        if self.use_fused:
            hidden = self.forward_paged(_paged(batch, self.short_queries))
        else:
            plan = plan_attention(batch, self.architecture, self.dtype, pool.block_size)
            with one_thread(is_small(self._weights, self._bytes, len(batch.token_ids))):
                hidden = self.model.forward(batch.token_ids, batch.positions, batch.slot_mapping, plan, pool.layers)
        logits = self.model.logits(hidden.index_select(0, batch.logits_indices))
        return ForwardOutput(logits=logits, finite=_finite_rows(hidden, batch.query_lens))

    @property
    def drafts_in_one_call(self) -> bool:
        """There is a `draft_greedily`."""
        return self.native is not None

    @torch.inference_mode()
    def draft_greedily(self, batch: ForwardBatch, rows: list[int], counts: list[int], starts: list[int]) -> DraftOutput:
        """The batch's pass, and then one of each row's own tokens for every further draft.

        `rows`: of the batch, those whose last token has a logits index; each gets `counts` drafts from position
        `starts` on.
        """
        assert self.native is not None
        room = batch.block_tables.shape[1] * self.pool.block_size  # C++ looks at no bounds
        assert all(start + count - 2 < room for start, count in zip(starts, counts, strict=True)), "blocks lack"
        drafted, *finite = self.native.draft(
            batch.token_ids, batch.positions, batch.slot_mapping, batch.block_tables, batch.query_lens,
            batch.logits_indices, self.pool.layers, *map(torch.tensor, (rows, counts, starts)),
        )  # fmt: skip
        return DraftOutput(drafted, *finite)

    def forward_paged(self, batch: PagedBatch) -> Tensor:
        """Final hidden states [T, hidden_size] by the fused forward; fit for capture."""
        return fused.forward(self.model, batch, self.pool.layers, self._only)

    @contextmanager
    def few_layers(self) -> Iterator[None]:
        """Inside, the fused forward computes one layer of each kind: every kernel of all is launched, to be compiled
        and loaded, in a fraction of the time."""
        self._only = fused.one_of_each_kind(self.model)
        try:
            yield
        finally:
            self._only = None

    @torch.inference_mode()
    def compile(self, max_tokens: int, max_logits: int) -> None:
        """Compile on a CPU what a step of up to `max_tokens` tokens and `max_logits` rows of logits will want: later
        it would take memory and milliseconds from a server that is at work."""
        if self.device.type != "cpu" or self.native is not None:
            return
        for rows in product_sizes(max_tokens):
            with one_thread(is_small(self._weights, self._bytes, rows)):
                for linear in self.model.layers[0].linears:  # those of other layers have the same shapes
                    linear.compile(rows)
        for rows in product_sizes(max_logits):
            self.model.head.compile(rows)

    @property
    def max_positions(self) -> int:
        """Positions that the rotary table covers."""
        return self.model.rotary.shape[0]

    @torch.inference_mode()
    def zero_slots(self, slots: Tensor) -> None:
        """Zero the cache at `slots` in every layer, after a row failed: stale NaN would pass through masks."""
        if self.native is not None:
            zero_slots(self.pool.layers, slots)
        else:
            self.pool.zero_slots(slots)


def _reduces_head(arch: Architecture, config: ModelConfig) -> bool:
    cut = config.head_size is not None and config.head_size < arch.vocab_size
    return arch.draft_vocab_size is not None or cut


def _reduce_head(model: LlamaModel, config: ModelConfig) -> None:
    """The head of a draft that proposes only some tokens: as its checkpoint has it, or cut to what was asked for."""
    arch = model.arch
    if arch.draft_vocab_size is not None:
        dummy = config.load_format == "dummy"
        tokens = (
            np.arange(arch.draft_vocab_size) if dummy else read_map(config.path, arch.draft_vocab_size, arch.vocab_size)
        )
        model.reduce_head(torch.from_numpy(tokens), cut=False)
    elif _reduces_head(arch, config):
        counts = read_counts(config.path, arch.vocab_size)
        assert counts is not None, "the arguments have checked that the draft says which tokens are frequent"
        tokens = frequent_tokens(counts, config.head_size, config.eos_token_ids)
        model.reduce_head(torch.from_numpy(tokens), cut=True)


def _allocated_bytes(device: torch.device) -> int:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


_MAX_SHORT_QUERY = 8


def _paged(batch: ForwardBatch, short_queries: Collection[int]) -> PagedBatch:
    device, lengths = batch.token_ids.device, batch.query_lens
    uniform = len(set(lengths)) == 1 and lengths[0] in short_queries
    starts = None if uniform else torch.tensor(list(accumulate(lengths, initial=0)), dtype=torch.int32, device=device)
    return PagedBatch(
        token_ids=batch.token_ids,
        positions=batch.positions,
        slots=batch.slot_mapping,
        block_tables=batch.block_tables.to(torch.int32),
        kv_lens=torch.tensor(batch.kv_lens, dtype=torch.int32, device=device),
        max_query_len=max(lengths),
        query_starts=starts,
        max_kv_len=max(batch.kv_lens),
    )


def _finite_rows(hidden: Tensor, query_lens: list[int]) -> Tensor:
    """[R] bool. A sum over the hidden state is finite only if all its (normed, hence small) members are."""
    finite = torch.isfinite(hidden.sum(-1, dtype=torch.float32))  # [T]
    num_rows = len(query_lens)
    if len(set(query_lens)) == 1:
        return finite.view(num_rows, -1).all(-1)
    rows = [row for row, length in enumerate(query_lens) for _ in range(length)]
    bad = torch.zeros(num_rows, device=hidden.device)
    return bad.index_add_(0, torch.tensor(rows, device=hidden.device), (~finite).float()) == 0
