"""Rules over pods that no schema has: what the API server refuses, and what works until a rollout, a drain or NCCL."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from paceline.deploy.check.findings import Finding, Json, error, warning
from paceline.deploy.check.pod_specs import PodSpec, command_words, containers
from paceline.deploy.check.quantities import read
from paceline.deploy.gpus import gpus_in_words

_LEAST_SHM = 2**30
_START_SECONDS = 30 * 60
_DEFAULT_GRACE_SECONDS = 30


def pod_findings(pod: PodSpec) -> Iterator[Finding]:
    for rule in _RULES:
        yield from rule(pod)


def _containers(pod: PodSpec) -> Iterator[Finding]:
    if pod.is_whole and not pod.spec.get("containers"):
        yield error(pod.path, "has no containers.")


def _volumes(pod: PodSpec) -> Iterator[Finding]:
    own = {volume.get("name") for volume in pod.spec.get("volumes") or []}
    for path, container in containers(pod.spec):
        places = set()
        for mount in container.get("volumeMounts") or []:
            name, place = mount.get("name"), mount.get("mountPath")
            where = f"{pod.path}{path}.volumeMounts"
            if pod.other_volumes is not None and name not in own | pod.other_volumes:
                yield error(where, f"'{name}' is mounted at {place}, and the pod has no such volume.")
            if place in places:
                yield error(where, f"two volumes are mounted at {place}.")
            places.add(place)


def _gpus_used(pod: PodSpec) -> Iterator[Finding]:
    """A server uses all of its pod's GPUs or does not start. Over several pods, no one command says how many."""
    for path, container in _servers(pod):
        limits = (container.get("resources") or {}).get("limits") or {}
        used = gpus_in_words(command_words(container))
        for name, count in limits.items():
            if name.endswith("/gpu") and used is not None and str(count) != str(used):
                yield error(
                    f"{pod.path}{path}.resources", f"{name} is {count}, and the command makes the server use {used}."
                )


def _shared_memory(pod: PodSpec) -> Iterator[Finding]:
    """NCCL needs far more than the 64 MB that a container gets."""
    volumes = {volume.get("name"): volume for volume in pod.spec.get("volumes") or []}
    for path, container in _gpu_containers(pod):
        mount = next((m for m in container.get("volumeMounts") or [] if m.get("mountPath") == "/dev/shm"), None)
        if mount is None:
            if not pod.inherits_probes:
                yield warning(f"{pod.path}{path}", "has GPUs and no /dev/shm of its own: NCCL fails with 64 MB.")
            continue
        empty_dir = volumes.get(mount.get("name"), {}).get("emptyDir")
        if empty_dir is not None and empty_dir.get("medium") != "Memory":
            yield error(f"{pod.path}{path}", "/dev/shm is not in memory: emptyDir needs medium: Memory.")
        size = read((empty_dir or {}).get("sizeLimit"))
        if size is not None and size < _LEAST_SHM:
            yield warning(f"{pod.path}{path}", f"/dev/shm has {empty_dir['sizeLimit']}: NCCL needs 1Gi, better 16Gi.")


def _probes(pod: PodSpec) -> Iterator[Finding]:
    for path, container in _servers(pod):
        place = f"{pod.path}{path}"
        for name in ("startupProbe", "livenessProbe", "readinessProbe"):
            probe = container.get(name)
            handlers = {"httpGet", "tcpSocket", "exec", "grpc"}
            if probe is not None and not pod.inherits_probes and not handlers & probe.keys():
                yield error(f"{place}.{name}", "says when to ask and not what: give httpGet.")
        if not _is_gpu(container):
            continue
        startup, liveness = container.get("startupProbe"), container.get("livenessProbe")
        if startup is None:
            if not pod.inherits_probes:
                yield warning(place, "has no startupProbe: liveness kills a large model while it loads.")
        elif startup.get("failureThreshold", 3) * startup.get("periodSeconds", 10) < _START_SECONDS:
            yield warning(f"{place}.startupProbe", "gives less than 30 minutes, and a 70B load can take longer.")
        if liveness is not None and liveness.get("timeoutSeconds", 1) < 5:
            yield warning(f"{place}.livenessProbe", "waits less than 5 s: a busy server is killed. Set timeoutSeconds.")


def _ending(pod: PodSpec) -> Iterator[Finding]:
    if _is_runtime(pod):  # its grace period stands in the InferenceService
        return
    grace = pod.spec.get("terminationGracePeriodSeconds", _DEFAULT_GRACE_SECONDS)
    for path, container in _servers(pod):
        pre_stop = (container.get("lifecycle") or {}).get("preStop")
        seconds = ((pre_stop or {}).get("sleep") or {}).get("seconds", 0)
        if seconds >= grace:
            yield error(
                f"{pod.path}{path}.lifecycle",
                f"preStop sleeps {seconds} s of the pod's {grace} s grace: nothing is left to finish requests.",
            )
        if _is_gpu(container) and pre_stop is None:
            yield warning(f"{pod.path}{path}", "has no preStop sleep: requests still arrive while it stops.")
        if _is_gpu(container) and grace <= _DEFAULT_GRACE_SECONDS:
            yield warning(pod.path, f"has {grace} s to end: longer answers are cut at every rollout.")


def _service_links(pod: PodSpec) -> Iterator[Finding]:
    if pod.serves and "enableServiceLinks" not in pod.spec and not _is_runtime(pod) and any(_servers(pod)):
        yield warning(pod.path, "enableServiceLinks is not false: a Service 'vllm' would set VLLM_PORT in the pod.")


def _security(pod: PodSpec) -> Iterator[Finding]:
    pod_context = pod.spec.get("securityContext") or {}
    for path, container in containers(pod.spec):
        context = {**pod_context, **(container.get("securityContext") or {})}
        if not context.get("runAsNonRoot") and not _is_runtime(pod) and not _is_merged(pod, container):
            yield warning(f"{pod.path}{path}", "may run as root: set securityContext.runAsNonRoot.")
        image = container.get("image")
        if isinstance(image, str) and "@" not in image and _tag(image) in ("", "latest"):
            yield warning(
                f"{pod.path}{path}.image", f"{image} names no version: replicas may differ, and none goes back."
            )


def _host(pod: PodSpec) -> Iterator[Finding]:
    """What gives a pod its node; the baseline Pod Security Standard refuses all of it."""
    of_node = [name for name in ("hostNetwork", "hostPID", "hostIPC") if pod.spec.get(name) is True]
    of_node += [f"hostPath ({v.get('name')})" for v in pod.spec.get("volumes") or [] if "hostPath" in v]
    if of_node and not pod.is_of_node:
        yield warning(pod.path, f"{', '.join(of_node)}: the pod reaches into its node; a server needs none of it.")
    for path, container in containers(pod.spec):
        context = {**(pod.spec.get("securityContext") or {}), **(container.get("securityContext") or {})}
        place = f"{pod.path}{path}.securityContext"
        if context.get("privileged") is True:
            said = warning if pod.is_of_node else error
            yield said(place, "privileged: true is root on the node. A server needs it not: leave it out.")
            if context.get("allowPrivilegeEscalation") is False:
                yield error(place, "privileged: true and allowPrivilegeEscalation: false exclude each other.")
        added = [name for name in (context.get("capabilities") or {}).get("add") or [] if name != "NET_BIND_SERVICE"]
        if added and not pod.is_of_node:
            yield warning(place, f"adds {', '.join(added)}: a server needs no capabilities. Leave them out.")
        if context.get("runAsNonRoot") is True and context.get("runAsUser") == 0:
            yield error(place, "runAsNonRoot with runAsUser 0: the container would never start.")


def _tag(image: str) -> str:
    return image.rsplit("/", 1)[-1].partition(":")[2]


def _is_runtime(pod: PodSpec) -> bool:
    """A ServingRuntime: what is true of the whole pod stands in the InferenceService."""
    return pod.path == "$.spec" and "supportedModelFormats" in pod.spec


def _is_merged(pod: PodSpec, container: Json) -> bool:
    """An InferenceService's model, whose container stands in the runtime."""
    return "image" not in container and pod.other_volumes != frozenset()


def _servers(pod: PodSpec) -> Iterator[tuple[str, Json]]:
    if pod.serves:
        yield from ((path, container) for path, container in containers(pod.spec) if path.startswith(".containers"))


def _gpu_containers(pod: PodSpec) -> Iterator[tuple[str, Json]]:
    return ((path, container) for path, container in containers(pod.spec) if _is_gpu(container))


def _is_gpu(container: Json) -> bool:
    limits = (container.get("resources") or {}).get("limits") or {}
    return any("gpu" in name and str(count) != "0" for name, count in limits.items())


_RULES: tuple[Callable[[PodSpec], Iterator[Finding]], ...] = (
    _containers, _gpus_used, _volumes, _shared_memory, _probes, _ending, _service_links, _security, _host,
)  # fmt: skip
