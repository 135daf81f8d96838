"""Arguments that vLLM once had: what to do instead, and the values under which nothing is lost by leaving them out."""

from __future__ import annotations

from typing import Any

_ONE_ENGINE = "its engine has no such choice any more, leave it out"

GONE: dict[str, tuple[str, tuple[Any, ...]]] = {
    "swap_space": ("a preempted request is computed again, leave it out", (0, 0.0, 4, 4.0)),
    "use_v2_block_manager": (_ONE_ENGINE, (True,)),
    "worker_use_ray": ("give distributed_executor_backend='ray'", (False,)),
    "guided_decoding_backend": ("give structured_outputs_config={'backend': ...}", ("auto",)),
    "max_seq_len_to_capture": (_ONE_ENGINE, (8192,)),
    "max_context_len_to_capture": (_ONE_ENGINE, ()),
    "num_scheduler_steps": ("several steps are no longer scheduled at once, leave it out", (1,)),
    "multi_step_stream_outputs": ("several steps are no longer scheduled at once, leave it out", (True, False)),
    "disable_async_output_proc": (_ONE_ENGINE, (False,)),
    "preemption_mode": ("a preempted request is always computed again, leave it out", ("recompute",)),
    "scheduler_delay_factor": (_ONE_ENGINE, (0, 0.0)),
    "tokenizer_pool_size": (_ONE_ENGINE, (0,)),
    "task": ("give runner='generate'", ("auto", "generate")),
    "rope_scaling": ("give hf_overrides={'rope_parameters': ...}", ()),
    "rope_theta": ("give hf_overrides={'rope_parameters': ...}", ()),
    "override_pooler_config": ("give pooler_config", ()),
    "disable_log_requests": ("requests are not logged unless enable_log_requests is given", (True,)),
    "cudagraph_sizes": ("give cudagraph_capture_sizes", ()),
}
