"""Worker: one rank. Loads both models, or its share of them, allocates both pools, executes plans.

It keeps no sequence between two steps: everything a step needs is in its plan. In a world of several ranks each has a
worker, and all do the same: `load`, `prepare`, and then every plan in the leader's order.
"""

from __future__ import annotations

from collections.abc import Callable

import psutil
import torch

from paceline.config import EngineConfig
from paceline.distributed.world import World
from paceline.layers.restrictions import MaskProvider
from paceline.plan import StepPlan, StepResult, StepShapes
from paceline.runner.model_runner import ModelRunner
from paceline.speculative.acceptance import make_acceptance
from paceline.speculative.captured import CapturedDecoder
from paceline.speculative.decoder import SpeculativeDecoder
from paceline.speculative.proposers import DraftModelProposer, NgramProposer, NoProposer, Proposer
from paceline.step_forms import StepForms
from paceline.structured.masks import GrammarMasks
from paceline.structured.store import GrammarStore
from paceline.worker.hardware import hardware_name
from paceline.worker.memory_plan import DeviceMemory, MemoryPlan, plan_memory
from paceline.worker.profile import MIN_BLOCKS, activation_bytes, largest_steps, short_steps
from paceline.worker.shared_masks import SharedMasks

_DRAFT_COUNTS = (0, 1, 2, 3, 4, 5, 7)  # captured up to the K of the configuration, which is captured too


class Worker:
    def __init__(
        self,
        config: EngineConfig,
        grammars: GrammarStore | None = None,
        world: World | None = None,
        *,
        loaded: Callable[[], None] = lambda: None,
    ) -> None:
        """`loaded` is called once the weights are in memory; behind it ranks wait for each other."""
        self._config = config
        self._world = world or World(device=torch.device(config.device))
        self._device = self._world.device
        self.target = ModelRunner.load(config.model, self._device, group=self._world.target)
        self.draft = ModelRunner.load(config.draft, self._device, group=self._world.draft) if config.draft else None
        loaded()
        self.decoder = SpeculativeDecoder(
            self.target,
            self._proposer(),
            block_size=config.cache.block_size,
            vocab_size=self._vocab_size(),
            acceptance=make_acceptance(config.speculative),
            masks=self._masks(grammars),
        )
        self.captured = self._captured_decoder()
        self.memory = self._plan_memory()
        self._allocate_pools(self.memory.num_blocks)
        if self.captured is not None:
            self.captured.capture()
            if self._device.type == "cuda":
                torch.cuda.empty_cache()  # each graph's trial run left segments of its own size behind
        self._reserve = self._most_reserved()
        self._done: StepResult | None = None  # of an eager step, which is over when it is submitted

    def compile(self) -> None:
        """On a CPU, what steps will want of every size, before there is a request."""
        limits = self._config.scheduler
        num_logits = min(limits.max_num_seqs * (self._config.num_speculative_tokens + 1), limits.max_num_batched_tokens)
        for runner in (self.target, self.draft):
            if runner is not None:
                runner.compile(limits.max_num_batched_tokens, num_logits)

    def submit(self, plan: StepPlan) -> None:
        """Start a step: captured if it can be, else here and now."""
        if self.captured is not None and self.captured.takes(plan):
            was_all_captured = not self.captured.submit(plan)
        else:
            self._done = self.decoder.run(plan)
            was_all_captured = False
        if not was_all_captured:
            self._give_back()

    def collect(self) -> StepResult:
        """The result of the oldest step submitted."""
        if self._done is not None:
            done, self._done = self._done, None
            return done
        assert self.captured is not None
        return self.captured.collect()

    def release(self) -> None:
        """Give the captured graphs back; no step may follow."""
        if self.captured is not None:
            self.captured.release()

    def can_run_ahead(self) -> bool:
        """Only behind a captured step: what the next one must know of it stays on the device."""
        return self._done is None and self.captured is not None and self.captured.num_under_way == 1

    def is_done(self) -> bool:
        """`collect` would not wait."""
        return self._done is not None or self.captured is None or self.captured.is_done()

    def shapes(self) -> StepShapes:
        """What is captured, and the hardware."""
        forward = "native" if self.target.native is not None else ""
        forms = self.captured.forms if self.captured is not None else StepForms()
        return StepShapes(forms=forms, hardware=hardware_name(self._device), forward=forward)

    def describe(self) -> dict[str, str]:
        """What was decided while loading, for the table printed at start."""
        table = {}
        for name, runner in (("target", self.target), ("draft", self.draft)):
            if runner is not None and runner.formats.words:
                table[f"{name} quantization"] = runner.formats.words
        if self.target.kv_dtype != self.target.dtype:
            table["KV cache dtype"] = str(self.target.kv_dtype).removeprefix("torch.")
        if self._device.type == "cuda":
            table["CUDA graphs"] = (
                self.captured.describe() if self.captured is not None else "none: every step is eager"
            )
        return table | self.memory.describe()

    def _allocate_pools(self, num_blocks: int) -> None:
        for runner in filter(None, (self.target, self.draft)):
            runner.allocate_kv(num_blocks, self._config.cache.block_size)

    def _plan_memory(self) -> MemoryPlan:
        block_size = self._config.cache.block_size
        plan = plan_memory(
            self._config,
            target_weight_bytes=self.target.weight_bytes,
            draft_weight_bytes=self.draft.weight_bytes if self.draft else 0,
            target_bytes_per_block=self.target.bytes_per_block(block_size),
            draft_bytes_per_block=self.draft.bytes_per_block(block_size) if self.draft else 0,
            memory=self._device_memory(),
        )
        return plan.with_blocks(self._world.target.minimum(plan.num_blocks))  # block numbers are the same on all ranks

    def _device_memory(self) -> DeviceMemory:
        if self._device.type == "cpu":
            return DeviceMemory(free_bytes=int(psutil.virtual_memory().available), num_sharers=self._world.size)
        self._allocate_pools(MIN_BLOCKS)
        for plan in short_steps(self._config):
            self.decoder.run(plan)
        peak = activation_bytes(self.decoder.run, largest_steps(self._config), self._device)
        graphs = self.captured.measure_bytes() if self.captured is not None else 0
        free, total = torch.cuda.mem_get_info(self._device)  # the context has grown by the kernels that were loaded
        return DeviceMemory(free_bytes=free, total_bytes=total, activation_bytes=peak, graph_bytes=graphs)

    def _most_reserved(self) -> int | None:
        """Bytes that torch's allocator may hold on to; None: no limit is known (a CPU)."""
        if self._device.type != "cuda" or not self.memory.limit_bytes:
            return None
        free, total = torch.cuda.mem_get_info(self._device)
        outside = total - free - torch.cuda.memory_reserved(self._device)  # context, kernels, other processes
        return self.memory.limit_bytes - outside

    def _give_back(self) -> None:
        """Eager steps of different sizes leave segments behind that serve no other size, beyond the plan's limit.

        Not a hard limit of the allocator: it would turn a fragmented moment into a failed step.
        """
        if self._reserve is not None and torch.cuda.memory_reserved(self._device) > self._reserve:
            torch.cuda.empty_cache()

    def _captured_decoder(self) -> CapturedDecoder | None:
        config, speculative = self._config, self._config.speculative
        if not config.captures_steps:
            return None
        k = config.num_speculative_tokens
        return CapturedDecoder(
            self.target,
            self.draft,
            block_size=config.cache.block_size,
            vocab_size=self._vocab_size(),
            max_num_seqs=config.scheduler.max_num_seqs,
            max_model_len=config.model.max_model_len,
            draft_counts=[*(count for count in _DRAFT_COUNTS if count < k), k],
            synthetic_rates=speculative.synthetic_acceptance_rates if speculative is not None else (),
        )

    def _masks(self, grammars: GrammarStore | None) -> MaskProvider | None:
        if self._world.size == 1:
            return GrammarMasks(grammars, self._vocab_size(), self._device) if grammars else None
        own = GrammarMasks(grammars, self._vocab_size(), self._device) if grammars and not self._world.rank else None
        return SharedMasks(own, self._world.target, self._vocab_size(), self._device)

    def _vocab_size(self) -> int:
        """Ids both models have; the configuration's, where the tokenizer has set it lower."""
        sizes = [runner.architecture.vocab_size for runner in (self.target, self.draft) if runner]
        return min([*sizes, self._config.model.vocab_size or sizes[0]])

    def _proposer(self) -> Proposer:
        speculative = self._config.speculative
        if speculative is None:
            return NoProposer()
        if self.draft is not None:
            return DraftModelProposer(
                self.draft, block_size=self._config.cache.block_size, vocab_size=self._vocab_size()
            )
        return NgramProposer(min_length=speculative.prompt_lookup_min, max_length=speculative.prompt_lookup_max)
