"""Speculation over pipeline stages (pipeline_parallel_size > 1): which versions of vLLM can do it, by method.

Read from the published packages 0.28.0 to 0.33.0 and from vLLM's own issues. Until 0.29 the drafts that the last stage
makes do not reach the first (#30436, #49355, #57755): workers die at the start. From 0.30 on its model runner V2 passes
them on (#50514), for the methods that it has; what is left to V1 still dies. A draft model of its own is loaded on the
last stage as if it were a part of the target's pipeline: a Llama there has the second half of its layers, no table of
tokens, and waits for the first half.
"""

from __future__ import annotations

from collections.abc import Iterator

FIRST_WITH_STAGES = 30
# A method -> the minor version from which the runner V2 has it; None: not up to the last that was read.
_IN_V2: dict[str, int | None] = {
    "suffix": None, "custom_class": None, "medusa": None, "mlp_speculator": None, "ngram": 32, "ngram_gpu": 32,
}  # fmt: skip
LAST_READ = 33


def staged_problem(method: str | None, stages: int, minor: int) -> str | None:
    """Why a version cannot draft so over `stages`, as a sentence; None where it may."""
    if stages <= 1 or method is None or minor > LAST_READ:
        return None
    start = f"pipeline_parallel_size={stages} with speculation ({method}): "
    end = (
        " Leave the speculative configuration out, or give these GPUs to tensor_parallel_size and set "
        "pipeline_parallel_size to 1."
    )
    if minor < FIRST_WITH_STAGES:
        return f"{start}no method drafts over pipeline stages in vLLM 0.{minor}; its workers end at the start.{end}"
    if method == "draft_model":
        return (
            f"{start}vLLM 0.{minor} splits the draft over the target's stages and then runs only its last part, which "
            f"fails at the start.{end}"
        )
    since = _IN_V2.get(method, FIRST_WITH_STAGES)
    if since is None or minor < since:
        can = f" (0.{since} can)" if since else ""
        return f"{start}vLLM 0.{minor} drafts by this method without stages only{can}.{end}"
    return None


def staged_notes(method: str | None, stages: int) -> Iterator[str]:
    """Where it may."""
    if stages > 1 and method is not None:
        yield (
            f"Speculation ({method}) over {stages} pipeline stages is new in vLLM: it needs model runner V2 on GPUs, "
            "and for eagle3 and its like a target that supports it; Paceline has not tried it. Compare its answers "
            "with those without speculation first."
        )
