"""Target: values, platform and runtime together, and every name that manifests share.

KServe makes the pods of two of the three platforms; what selects them there are KServe's own labels.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from paceline.deploy.values import Platform, Runtime, Values

PORT = 8000
VLLM_VERSION = "0.32.0"  # where the values name none
MODEL_MOUNT = "/mnt/models"  # where KServe puts a model as well
DRAFT_MOUNT = "/mnt/draft"  # beside it, not below: nothing can be mounted inside a read-only mount
CACHE_MOUNT = "/cache"
SERVER = "server"  # app.kubernetes.io/component of the pods that serve
DOWNLOAD = "model-download"

Labels = dict[str, str]


@dataclass(frozen=True, slots=True)
class Target:
    values: Values
    platform: Platform
    runtime: Runtime
    gpus_of_command: int | None = None  # that the server's command uses; None: it is not made yet

    @property
    def name(self) -> str:
        return self.values.name

    @property
    def api_name(self) -> str:
        """Of our Service: KServe owns the plain name, and pods would be given NAME_PORT of it in their environment."""
        return f"{self.name}-api"

    @property
    def models_claim(self) -> str:
        return self.values.storage.models.existing_claim or f"{self.name}-models"

    @property
    def compile_cache_claim(self) -> str:
        return self.values.storage.compile_cache.existing_claim or f"{self.name}-compile-cache"

    @property
    def model_folder(self) -> str:
        return self.values.model.folder or folder_of(self.values.model.source)

    @property
    def draft_folder(self) -> str | None:
        draft = self.values.draft
        return (draft.folder or folder_of(draft.source)) if draft else None

    @property
    def served_name(self) -> str:
        named = self.values.model.served_name
        return self.name if named is None else named

    @property
    def vllm_image(self) -> str:
        """Of the version that is asked for, so that the options are checked against what will run."""
        return self.values.vllm.image or f"vllm/vllm-openai:v{_whole(self.values.vllm.version or VLLM_VERSION)}"

    @property
    def vllm_version(self) -> str:
        wanted = self.values.vllm.version
        return wanted or version_in_tag(self.values.vllm.image or "") or VLLM_VERSION

    @property
    def num_gpus(self) -> int:
        """Of one pod."""
        wanted = self.values.resources.gpus
        if wanted is not None:
            return wanted
        return 0 if self.on_cpu else self.gpus_of_command or self.tensor_parallel_size

    @property
    def on_cpu(self) -> bool:
        return self.values.engine.get("device") == "cpu" or self.values.resources.gpus == 0

    @property
    def tensor_parallel_size(self) -> int:
        size = self.values.engine.get("tensor_parallel_size", 1)
        return size if isinstance(size, int) else 1  # anything else is a problem that consistency.py names

    @property
    def serves_tls(self) -> bool:
        """KServe's own LLM template starts vLLM with a certificate; everything else here speaks plain HTTP."""
        return self.platform == "kserve-llm" and self.runtime == "vllm"

    @property
    def termination_seconds(self) -> int:
        """Longer than the longest request, so that a rollout cuts nobody off."""
        rollout = self.values.rollout
        return rollout.pre_stop_seconds + rollout.longest_request_seconds + 30

    def metric(self, suffix: str) -> str:
        """Paceline's metrics have vLLM's suffixes."""
        return f"{self.runtime}:{suffix}"

    def labels(self, component: str = SERVER) -> Labels:
        return {
            "app.kubernetes.io/name": "paceline",
            "app.kubernetes.io/instance": self.name,
            "app.kubernetes.io/component": component,
        }

    def pod_selector(self) -> Labels:
        match self.platform:
            case "kubernetes":
                return self.labels()
            case "kserve":
                return {"serving.kserve.io/inferenceservice": self.name}
            case "kserve-llm":
                return {
                    "app.kubernetes.io/name": self.name,
                    "app.kubernetes.io/part-of": "llminferenceservice",
                    "kserve.io/component": "workload",
                }


def version_in_tag(image: str) -> str | None:
    """The vLLM version that an image's tag begins with: registry/vllm-openai:v0.32.0-x86_64 -> 0.32.0."""
    tag = image.partition("@")[0].rsplit("/", 1)[-1].partition(":")[2]
    found = re.match(r"v?(\d+\.\d+(?:\.\d+)?)(?![\w.])", tag)
    return found[1] if found else None


def same_version(one: str, other: str) -> bool:
    """Whether both may name one version: 0.32 is any 0.32.x."""
    return all(mine == theirs for mine, theirs in zip(one.split("."), other.split("."), strict=False))


def _whole(version: str) -> str:
    """Images are tagged with three numbers."""
    return version if version.count(".") > 1 else f"{version}.0"


def folder_of(source: str) -> str:
    """org/Some-Model -> some-model"""
    return re.sub(r"[^a-z0-9.-]+", "-", source.rsplit("/", 1)[-1].lower()).strip("-.") or "model"
