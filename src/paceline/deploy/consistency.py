"""Rules over more than one field of the values: what a cluster would accept and then fail at, or never schedule."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.arguments.served_names import wrong_served_name
from paceline.deploy.check.walk import texts
from paceline.deploy.command import NO_DRAFT_METHODS
from paceline.deploy.known_shapes import split_problems
from paceline.deploy.quantity import to_bytes
from paceline.deploy.secrecy import token_in
from paceline.deploy.served_names import TEMPLATE_NAMES, passes_template
from paceline.deploy.target import VLLM_VERSION, Target, same_version, version_in_tag
from paceline.errors import ConfigurationError
from paceline.hub.catalog import KNOWN_MODELS, MISTAKEN_REPOS
from paceline.hub.repository import is_repo_id

# A Service NAME gives every pod of its namespace NAME_PORT=tcp://...; both runtimes read such variables as their own.
RUNTIME_NAMES = ("vllm", "paceline")
_SHARED = ("ReadWriteMany", "ReadOnlyMany")


def check_consistency(target: Target) -> None:
    problems = list(_problems(target))
    if len(problems) == 1:
        raise ConfigurationError(problems[0])
    if problems:
        lines = "".join(f"\n  {number}. {problem}" for number, problem in enumerate(problems, 1))
        raise ConfigurationError(f"{len(problems)} problems with these values:{lines}")


def _problems(target: Target) -> Iterator[str]:
    yield from _names(target)
    yield from _templates(target)
    yield from _tokens(target)
    yield from _sources(target)
    yield from _vllm_image(target)
    yield from _gpus(target)
    yield from split_problems(target)
    yield from _memory(target)
    yield from _storage(target)
    yield from _scaling(target)
    yield from _tolerations(target)


def _names(target: Target) -> Iterator[str]:
    sources = [("model", target.values.model.source)]
    sources += [("draft", target.values.draft.source)] if target.values.draft else []
    for part, source in sources:
        if source in NO_DRAFT_METHODS:
            yield (
                f"{part}.source={source!r} is a method of speculation and no model: set "
                f"engine.speculative_config.method to it, and {'draft: null' if part == 'draft' else 'name a model'}."
            )
    if target.name in RUNTIME_NAMES:
        yield (
            f"name={target.name!r}: a Service of the runtime's own name puts {target.name.upper()}_PORT into every pod "
            "of the namespace, which the runtime takes for its setting. Name it after the model."
        )
    if target.draft_folder == target.model_folder:
        yield (
            f"model and draft would lie in the same folder '{target.model_folder}' of the claim: give one of them "
            "another 'folder'."
        )
    wrong = wrong_served_name(target.served_name)
    if wrong is not None:
        yield f"model.served_name={target.served_name!r} {wrong}."
    elif target.serves_tls and not passes_template(target.served_name):
        yield f"model.served_name={target.served_name!r}: {TEMPLATE_NAMES}."


def _templates(target: Target) -> Iterator[str]:
    """KServe runs a ServingRuntime's container, and the whole of an LLMInferenceService, through a Go template."""
    values = target.values.model_dump(exclude={"vllm"} if target.runtime == "paceline" else None)
    if target.platform == "kubernetes":
        values = {"model": {"served_name": target.served_name}}  # the way to KServe stays open
    for path, text in texts(values, "values"):
        if "{{" in text:
            field = path.removeprefix("values.")
            yield f"{field}: '{{{{' would be read as a template by KServe; leave it out, or use platform kubernetes."


def _tokens(target: Target) -> Iterator[str]:
    """Values are committed, and manifests are; what is found is not printed."""
    for path, text in texts(target.values.model_dump(), "values"):
        what = token_in(text)
        if what is not None:
            yield (
                f"{path.removeprefix('values.')} holds {what}: make a Secret of it, and name that in secrets.hub_token "
                "or secrets.api_key."
            )


def _sources(target: Target) -> Iterator[str]:
    """The Job runs `paceline models pull` for each, which takes known names and repo ids."""
    values = target.values
    parts = [("model", values.model.source), *([("draft", values.draft.source)] if values.draft else [])]
    for part, source in parts:
        if source.lower() in MISTAKEN_REPOS:
            yield f"{part}.source={source!r}: there is no such model; it is {MISTAKEN_REPOS[source.lower()]!r}."
        elif not values.storage.models.download or source in KNOWN_MODELS or is_repo_id(source):
            continue
        elif source not in NO_DRAFT_METHODS:  # said above
            yield (
                f"{part}.source={source!r} cannot be downloaded: give a repo id org/name, or one of "
                f"{', '.join(KNOWN_MODELS)}. A model of your own: put its directory on the claim, name it with "
                f"{part}.folder, and set storage.models.download: false."
            )


def _vllm_image(target: Target) -> Iterator[str]:
    """The options are made for one version, and another might run."""
    image, version = target.values.vllm.image, target.values.vllm.version
    if target.runtime != "vllm" or image is None:
        return
    tagged = version_in_tag(image)
    if version is None and tagged is None:
        yield (
            f"vllm.image={image!r} does not say which version of vLLM it holds: give vllm.version as well, such as "
            f"{VLLM_VERSION!r}."
        )
    elif version is not None and tagged is not None and not same_version(version, tagged):
        yield (
            f"vllm.image={image!r} is tagged {tagged} and vllm.version={version!r} disagrees: name the image of that "
            "version, or leave one of them out."
        )


def _gpus(target: Target) -> Iterator[str]:
    values = target.values
    size = target.tensor_parallel_size
    if target.on_cpu and size > 1:
        yield f"engine.tensor_parallel_size={size} needs GPUs, and these values ask for none (device cpu or gpus 0)."
    elif target.runtime == "paceline" and values.resources.gpus not in (None, 0, size):  # vLLM's: gpus.py
        yield (
            f"resources.gpus={values.resources.gpus} and engine.tensor_parallel_size={size} disagree: a pod holds one "
            "server, which uses exactly its tensor-parallel size. Leave resources.gpus out."
        )
    if values.resources.gpus == 0 and values.engine.get("device") not in ("cpu", None):
        yield f"resources.gpus=0 and engine.device={values.engine.get('device')!r} disagree."


def _memory(target: Target) -> Iterator[str]:
    resources = target.values.resources
    memory, shm = to_bytes(resources.memory), to_bytes(resources.shm)
    if shm * 2 > memory:
        yield (
            f"resources.shm={resources.shm} counts towards resources.memory={resources.memory}: give memory at least "
            "twice as much."
        )
    if target.num_gpus and shm < 2**30:
        yield f"resources.shm={resources.shm} is too little for NCCL on GPUs; give 16Gi."


def _storage(target: Target) -> Iterator[str]:
    values = target.values
    models, cache = values.storage.models, values.storage.compile_cache
    if models.download and models.access_mode == "ReadOnlyMany":
        yield "storage.models.access_mode=ReadOnlyMany cannot be downloaded to: fill the claim and set download: false."
    if cache.access_mode == "ReadOnlyMany":
        yield "storage.compile_cache.access_mode=ReadOnlyMany: the compile cache is written to."
    for field, claim in (("models", models), ("compile_cache", cache)):
        if claim.access_mode == "ReadWriteOncePod" and field == "models" and models.download:
            yield "storage.models.access_mode=ReadWriteOncePod: the download Job and the server both mount the claim."
        if values.most_replicas > 1 and claim.access_mode not in _SHARED:
            yield (
                f"storage.{field}.access_mode={claim.access_mode} with {values.most_replicas} replicas: pods on a "
                "second node could not mount it. Use ReadWriteMany and a storage_class that has it."
            )
    if models.existing_claim is not None and models.existing_claim == cache.existing_claim:
        yield "storage.models and storage.compile_cache name one claim; only one of them is mounted read-only."


def _scaling(target: Target) -> Iterator[str]:
    values = target.values
    if values.scaling is None:
        return
    least, most = values.scaling.min_replicas, values.scaling.max_replicas
    if least > most:
        yield f"scaling.min_replicas={least} is more than scaling.max_replicas={most}."
    if "replicas" in values.model_fields_set:
        yield "replicas and scaling exclude each other: the autoscaler owns the number. Leave replicas out."
    if not values.monitoring.enabled:
        yield "scaling reads Prometheus, and monitoring.enabled=false leaves the pods unscraped. Enable it."


def _tolerations(target: Target) -> Iterator[str]:
    for index, toleration in enumerate(target.values.scheduling.tolerations):
        if toleration.operator == "Exists" and toleration.value:
            yield (
                f"scheduling.tolerations.{index}: operator Exists takes no value, and this one has "
                f"{toleration.value!r}: set operator: Equal, or leave the value out."
            )
