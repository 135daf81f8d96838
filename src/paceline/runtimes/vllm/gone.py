"""Arguments that vLLM once had: what to do instead, and the values under which they are left out with a note.

Those that only tuned a part that is gone (ANY) are left out whatever they say: the text and the API are the same.
"""

from __future__ import annotations

from typing import Any

ANY = None
_ONE_ENGINE = "its engine has no such choice any more, leave it out"

GONE: dict[str, tuple[str, tuple[Any, ...] | None]] = {
    "swap_space": ("a preempted request is computed again, leave it out", ANY),
    "use_v2_block_manager": (_ONE_ENGINE, ANY),
    "worker_use_ray": ("give distributed_executor_backend='ray'", (False,)),
    "guided_decoding_backend": ("give structured_outputs_config={'backend': ...}", ("auto",)),
    "max_seq_len_to_capture": (_ONE_ENGINE, ANY),
    "max_context_len_to_capture": (_ONE_ENGINE, ANY),
    "num_scheduler_steps": ("several steps are no longer scheduled at once, leave it out", ANY),
    "multi_step_stream_outputs": ("several steps are no longer scheduled at once, leave it out", ANY),
    "disable_async_output_proc": (_ONE_ENGINE, ANY),
    "preemption_mode": ("a preempted request is always computed again, leave it out", ANY),
    "scheduler_delay_factor": (_ONE_ENGINE, ANY),
    "tokenizer_pool_size": (_ONE_ENGINE, ANY),
    "task": ("give runner='generate'", ("auto", "generate")),
    "rope_scaling": ("give hf_overrides={'rope_parameters': ...}", ()),
    "rope_theta": ("give hf_overrides={'rope_parameters': ...}", ()),
    "override_pooler_config": ("give pooler_config", ()),
    "disable_log_requests": ("requests are not logged unless enable_log_requests is given", (True,)),
    "cudagraph_sizes": ("give cudagraph_capture_sizes", ()),
}
